"""Packed folders of ModelOpt (PN): 4-bit floats with two scales, and FP8."""

from __future__ import annotations

from collections.abc import Callable

from .case import Table
from .packed_bytes import HIDDEN, Folder, Q, Tensor, changed, f32, filled, finite_fp8, model

P = Table()
Change = Callable[[Folder], object]
W, S, ALL = (f"{Q}.weight{part}" for part in ("", "_scale", "_scale_2"))
ROWS = 128


def of(algorithm: str, matrix: Callable[[int, int], dict[str, Tensor]]) -> Folder:
    settings = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": ["lm_head"]}
    return model(settings, lambda name, n, k: {f"{name}.{part}": tensor for part, tensor in matrix(n, k).items()})


def nvfp4() -> Folder:
    return of(
        "NVFP4",
        lambda n, k: {
            "weight": filled("U8", [n, k // 2]),
            "weight_scale": filled("F8_E4M3", [n, k // 16], b"\x38"),
            "weight_scale_2": filled("F32", [], f32(0.01)),
            "input_scale": filled("F32", [], f32(1)),
        },
    )


def squares() -> Folder:
    def matrix(n: int, k: int) -> dict[str, Tensor]:
        grid = [-(-n // 128), 1, -(-k // 128), 1]
        return {"weight": finite_fp8([n, k]), "weight_scale": filled("F32", grid, f32(0.01))}

    return of("fp8_pb_wo", matrix)


def one(id: str, what: str, codes: str, change: Change, says: str = W, base: Callable[[], Folder] = nvfp4) -> None:
    P.reject(f"PN{id}", f"ModelOpt: {what}", codes, changed(change, base), says)


P.accept("PN00", "ModelOpt: sound, nvfp4", lambda: nvfp4().content())
P.accept("PN02", "ModelOpt: sound, squares of FP8", lambda: squares().content())
P.accept(
    "PN04",
    "ModelOpt: sound, a scale of all in one dimension",
    changed(lambda f: f.put(ALL, filled("F32", [1], f32(0.01))), nvfp4),
)
P.accept(
    "PN06",
    "ModelOpt: sound, with scales of caches",
    changed(lambda f: f.put(f"{Q.replace('q_proj', 'k_proj')}.k_scale", filled("F32", [], f32(1))), nvfp4),
)

one("01", "codes of AWQ", "QUANT_CONFIG", lambda f: f.quantization.update(quant_algo="W4A16_AWQ"), "quant_algo")
one("03", "no algorithm", "QUANT_CONFIG", lambda f: f.quantization.pop("quant_algo"), "quant_algo")
one("05", "codes in one dimension", "PACK_SHAPE", lambda f: f.shaped(W, ROWS * HIDDEN // 2))
one("07", "no rows", "PACK_SHAPE", lambda f: f.shaped(W, 0, HIDDEN // 2), S)
one("09", "scales absent", "PACK_PART", lambda f: f.without(S), S)
one("11", "scales of float16", "PACK_TYPE", lambda f: f.put(S, filled("F16", [ROWS, HIDDEN // 16], b"\x00\x3c")), S)
one("13", "scales of other columns", "PACK_SHAPE", lambda f: f.put(S, filled("F8_E4M3", [ROWS, 4], b"\x38")), S)
one("15", "a scale of all absent", "PACK_PART", lambda f: f.without(ALL), ALL)
one("17", "two scales of all", "PACK_SHAPE", lambda f: f.put(ALL, filled("F32", [2], f32(1))), ALL)
one("19", "a scale of all of float16", "PACK_TYPE", lambda f: f.put(ALL, filled("F16", [], b"\x00\x3c")), ALL)


def whole(value: float) -> Change:
    return lambda folder: folder.put(ALL, filled("F32", [], f32(value)))


def grid(*shape: int) -> Change:
    return lambda folder: folder.put(S, filled("F32", list(shape), f32(1)))


for id, value in (("21", 0.0), ("23", -1.0), ("25", float("inf"))):
    one(id, f"{value} as the scale of all", "NONFINITE", whole(value), ALL)
one("27", "a scale below 0", "NONFINITE", lambda f: f.last(S, b"\xb8"), S)
one("29", "squares of other rows", "PACK_SHAPE", grid(2, 1, 1, 1), S, squares)
one("31", "squares in other dimensions", "PACK_SHAPE", grid(1, 1, 1, 2), S, squares)
