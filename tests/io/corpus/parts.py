"""Models in several GGUF files (G)."""

from __future__ import annotations

from .case import Content, Table
from .gguf_bytes import FLOATS, I32, U16, Gguf, info, key, scalar, string

G = Table()
ONE, TWO = "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"


def part(
    number: int | None, tensors: list[str], count: int = 2, total: int | None = 2, architecture: str | None = "llama"
) -> bytes:
    keys = [] if architecture is None else [key("general.architecture", string(architecture))]
    for name, kind, value in (("no", U16, number), ("count", U16, count), ("tensors.count", I32, total)):
        if value is not None:
            keys.append(key(f"split.{name}", scalar(kind, value)))
    infos = [info(name, [8], offset=32 * at) for at, name in enumerate(tensors)]
    return Gguf(keys, infos, FLOATS * len(tensors)).bytes()


def parts(one: bytes | None = None, two: bytes | None = None, **names: Content) -> dict[str, Content]:
    """Two parts of a tensor each; the first file is the one that is opened."""
    return {ONE: one or part(0, ["a"]), TWO: two or part(1, ["b"], architecture=None), **names}


G.accept("G00", "sound: two parts", parts)
G.reject("G02", "the second part absent", "SPLIT", lambda: {ONE: part(0, ["a"])}, TWO)
G.reject("G04", "the second part says it is the third", "SPLIT", lambda: parts(two=part(2, ["b"])), "split.no")
G.reject("G06", "the first part says it is the second", "SPLIT", lambda: parts(one=part(1, ["a"])), "split.no")
G.reject("G08", "parts disagree about how many there are", "SPLIT", lambda: parts(two=part(1, ["b"], count=3)))
G.reject("G10", "more parts than the name says", "SPLIT", lambda: parts(one=part(0, ["a"], count=3)), "split.count")
G.reject("G12", "the same tensor in both", "SPLIT", lambda: parts(two=part(1, ["a"])), "a")
G.reject("G14", "fewer tensors than all parts have", "SPLIT",
         lambda: parts(part(0, ["a"], total=1), part(1, ["b"], total=1)), "tensors.count")  # fmt: skip
G.reject("G16", "parts disagree about the number of tensors", "SPLIT", lambda: parts(two=part(1, ["b"], total=9)))
G.reject("G18", "parts of two architectures", "SPLIT",
         lambda: parts(two=part(1, ["b"], architecture="qwen2")), "architecture")  # fmt: skip
G.reject("G20", "the second part is cut", "DATA_SHORT", lambda: parts(two=part(1, ["b"])[:-4]))
G.reject("G22", "a lone part under another name", "SPLIT", lambda: {"m.gguf": part(0, ["a"])})
G.reject("G24", "split.no a text", "SPLIT", lambda: {
    "m.gguf": Gguf([key("split.no", string("0"))], [info("a", [8])], FLOATS).bytes()}, "split.no")  # fmt: skip
G.reject("G26", "split.count -1", "SPLIT", lambda: parts(one=part(0, ["a"], count=0)))
G.reject("G28", "a whole file named as a part", "SPLIT", lambda: {
    ONE: Gguf([], [info("a", [8])], FLOATS).bytes(), TWO: part(1, ["b"])})  # fmt: skip
G.reject("G30", "65 535 parts, one there", "SPLIT",
         lambda: {"m-00001-of-65535.gguf": part(0, ["a"], count=65535)})  # fmt: skip
G.reject("G32", "no number of tensors", "SPLIT", lambda: parts(part(0, ["a"], total=None), part(1, ["b"], total=None)))
G.reject("G34", "the second part is not GGUF", "MAGIC", lambda: parts(two=b"x" * 100))
G.reject("G36", "negative number of a lone file", "SPLIT", lambda: {
    "m.gguf": Gguf([key("split.no", scalar(I32, -7))], [info("a", [8])], FLOATS).bytes()}, "split.no")  # fmt: skip
G.reject("G40", "-1 parts", "SPLIT", lambda: {
    "m.gguf": Gguf([key("split.count", scalar(I32, -1))], [info("a", [8])], FLOATS).bytes()})  # fmt: skip
G.accept("G38", "a lone file that says that it is the only part", lambda: {"m.gguf": part(0, ["a"], count=1, total=1)})
