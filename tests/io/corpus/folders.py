"""Folders of shards (I): model.safetensors.index.json and the files that it names."""

from __future__ import annotations

import json
from typing import Any

from .case import Content, Sparse, Table
from .tensors_file import of, tensor

I = Table()  # noqa: E741
INDEX = "model.safetensors.index.json"
ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def folder(index: Any = None, **shards: Content) -> dict[str, Content]:
    """Tensors a and b in a shard each, under this index (bytes are taken as they are)."""
    files: dict[str, Content] = {ONE: of(8, a=tensor()), TWO: of(8, b=tensor())}
    files |= shards
    index = {"metadata": {"total_size": 16}, "weight_map": {"a": ONE, "b": TWO}} if index is None else index
    files[INDEX] = index if isinstance(index, (bytes, Sparse)) else json.dumps(index).encode()
    return files


def mapped(**weight_map: Any) -> dict[str, Content]:
    return folder({"weight_map": weight_map})


def without(*names: str) -> dict[str, Content]:
    return {name: content for name, content in folder().items() if name not in names}


I.accept("I00", "sound: two shards", folder)
I.reject("I01", "a shard is absent", "IDX_FILE", lambda: without(TWO))
I.reject("I02", "shard path leads up and out", "IDX_PATH", lambda: mapped(a=ONE, b="../" + TWO))
I.reject("I03", "absolute shard path", "IDX_PATH", lambda: mapped(a=ONE, b="/etc/passwd"))
I.reject("I04", "tensor in the index, not in the shard", "IDX_MISSING", lambda: mapped(a=ONE, b=TWO, c=TWO))
I.reject("I05", "the same tensor in two shards", "IDX_DUP",
         lambda: folder(**{TWO: of(16, a=tensor(), b=tensor(offsets=(8, 16)))}))  # fmt: skip
I.reject("I06", "tensor in a shard, not in the index", "IDX_EXTRA",
         lambda: folder(**{ONE: of(16, a=tensor(), z=tensor(offsets=(8, 16)))}), "z")  # fmt: skip
I.reject("I07", "weight_map value is a list", "IDX_JSON", lambda: mapped(a=[ONE], b=TWO))
I.reject("I08", "weight_map is a list", "IDX_JSON", lambda: folder({"weight_map": [ONE, TWO]}))
I.reject("I09", "only pytorch_model.bin present", "PICKLE", lambda: {"pytorch_model.bin": b"\x80\x04."})
I.reject("I10", "weight_map absent", "IDX_JSON", lambda: folder({"metadata": {}}))
I.reject("I12", "index is not JSON", "IDX_JSON", lambda: folder(b"{"))
I.reject("I14", "index is a list", "IDX_JSON", lambda: folder([1]))
I.reject("I16", "index not UTF-8", "IDX_JSON", lambda: folder(b'{"weight_map":{"\xff":"x"}}'))
I.reject("I18", "a tensor twice in weight_map", "IDX_DUP|IDX_JSON",
         lambda: folder(json.dumps({"weight_map": {"a": ONE, "b": TWO}}).replace('"b"', '"a"').encode()))  # fmt: skip
I.reject("I20", "index = 100 000 brackets", "IDX_JSON", lambda: folder(b"[" * 100_000))
I.reject("I22", "index of 1 GiB of white space (sparse zeros)", "IDX_JSON", lambda: folder(Sparse(b"{", 1 << 30)))
I.reject("I24", "shard of another kind of file", "PICKLE",
         lambda: folder({"weight_map": {"a": ONE, "b": "model.bin"}}, **{"model.bin": b"\x80\x04."}))  # fmt: skip
I.reject("I26", "shard in a folder below", "IDX_PATH",
         lambda: folder({"weight_map": {"a": ONE, "b": "x/" + TWO}}, **{"x/" + TWO: of(8, b=tensor())}))  # fmt: skip
I.reject("I28", "shard's name with a backslash", "IDX_PATH", lambda: mapped(a=ONE, b="..\\" + TWO))
I.reject("I30", "shard's name with a zero byte", "IDX_PATH", lambda: mapped(a=ONE, b=TWO[:-12] + "\0" + TWO[-12:]))
I.reject("I32", "shard's name empty", "IDX_PATH", lambda: mapped(a=ONE, b=""))
I.reject("I34", "shard's name a dot", "IDX_PATH", lambda: mapped(a=ONE, b="."))
I.reject("I36", "tensors swapped between shards", "IDX_MISSING|IDX_EXTRA", lambda: mapped(a=TWO, b=ONE))
I.reject("I38", "a shard that is cut", "ST_TRUNC", lambda: folder(**{TWO: of(8, b=tensor())[:-1]}))
I.reject("I40", "an empty folder", "ABSENT|NOT_MODEL", lambda: {"README.md": b"x"})
I.accept("I42", "model.safetensors, and an index beside it that says otherwise: the file is taken, as by transformers",
         lambda: folder(**{"model.safetensors": of(8, z=tensor())}), policy=True)  # fmt: skip
I.reject("I44", "only a .pt", "PICKLE", lambda: {"model.pt": b"PK\x03\x04"})
I.reject("I46", "shard's name 5 000 letters long", "IDX_FILE|IDX_PATH|ABSENT",
         lambda: mapped(a=ONE, b="s" * 5000 + ".safetensors"))  # fmt: skip
I.reject("I48", "3 000 shards named, none there", "IDX_FILE|IDX_JSON",
         lambda: folder({"weight_map": {f"t{i}": f"s{i}.safetensors" for i in range(3_000)}}))  # fmt: skip
I.accept("I50", "model.safetensors alone", lambda: {"model.safetensors": of(8, a=tensor())})
I.reject(
    "I52", "weight_map empty, shards there", "IDX_EXTRA|IDX_JSON|NOT_MODEL|ABSENT", lambda: folder({"weight_map": {}})
)
I.reject("I54", "a lone shard of two, without an index", "IDX_FILE|NOT_MODEL|ABSENT|SPLIT",
         lambda: without(TWO, INDEX), policy=True)  # fmt: skip
I.reject("I56", "shards of two, without an index", "IDX_FILE", lambda: without(INDEX), policy=True)
I.reject("I60", "shard's name of another kind of file", "IDX_PATH",
         lambda: folder({"weight_map": {"a": ONE, "b": "b.gguf"}}, **{"b.gguf": of(8, b=tensor())}))  # fmt: skip
I.accept("I58", "a shard beside them that the index does not name", lambda: mapped(a=ONE), policy=True)
