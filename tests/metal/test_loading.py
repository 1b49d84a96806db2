"""Files on their way to the GPU: read to where tensors stay, used where they lie, or read by Metal itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torch_foundry
from tests.io import gguf_models
from torch_foundry import compile_shader, quant
from torch_foundry.core import devices
from torch_foundry.io import LoadError, open_gguf
from torch_foundry.io.gguf.writer import Tensor, write_gguf
from torch_foundry.io.weights import WeightReader

mock = torch.ops.mock_metal
foundry = torch.ops.torch_foundry
MPS = torch.device("mps")
ROWS, COLUMNS = 100, 512  # 54,400 bytes of q8_0: several pages, not whole ones
OWN = compile_shader(
    "kernel void same(device const uchar* x [[buffer(0)]], device uchar* y [[buffer(1)]],\n"
    "                 uint i [[thread_position_in_grid]]) { y[i] = x[i]; }"
)


@pytest.fixture
def setting() -> Iterator[Callable[[str, int], None]]:
    """Sets one of the mock's until the end of the test."""
    before: dict[str, int] = {}

    def given(name: str, value: int) -> None:
        was = mock.set(name, value)
        before.setdefault(name, was)

    yield given
    for name, value in before.items():
        mock.set(name, value)


@pytest.fixture
def by_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FOUNDRY_METAL_IO", "1")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with blocks at "t", numbers at "half", and others before them."""

    def tensor(fmt: str) -> Tensor:
        values = quant.quantize(torch.randn(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)), fmt)
        return Tensor([ROWS, COLUMNS], fmt, lambda: values)

    made = {"first": tensor("q4_0"), "t": tensor("q8_0"), "half": tensor("f16")}
    write_gguf(tmp_path / "m.gguf", {"general.architecture": "none"}, made)
    return tmp_path / "m.gguf"


def load(path: Path, name: str, mmap: bool = False, dtype: torch.dtype | None = None, **how: Any) -> torch.Tensor:
    """A weight on `mps`, as models get it; not read in pieces."""
    with open_gguf(path) as container:
        source = WeightReader(container, mmap, lambda name: not mmap)
        weight = source.weight(container.tensors[name], (ROWS, COLUMNS), **how)
        out = weight.load(MPS) if dtype is None else weight.load_as(MPS, dtype)
        assert source._piece.numel() == 0 or how or dtype or mock_is_private()
        return out


def mock_is_private() -> bool:
    was = mock.set("private_memory", 0)
    mock.set("private_memory", was)
    return bool(was)


def bytes_of(path: Path, name: str) -> torch.Tensor:
    with open_gguf(path) as container:
        return container.read(name)


def through_a_kernel(x: torch.Tensor) -> torch.Tensor:
    """What the GPU sees."""
    flat = x.view(-1).view(torch.uint8)
    y = torch.empty_like(flat)
    OWN.same(flat, y)
    return y.cpu().view(x.dtype).view(x.shape)


def maps_of(path: Path) -> int:
    return Path("/proc/self/maps").read_text().count(str(path))


# ------------------------------------------------------------------------------------------------ to where tensors stay


@pytest.mark.parametrize("private", [0, 1])
def test_read_to_where_it_stays(private: int, path: Path, setting: Callable[[str, int], None]) -> None:
    """Where the CPU reaches it; else through pieces."""
    setting("private_memory", private)
    for name in ("t", "half"):
        assert torch.equal(through_a_kernel(load(path, name)), bytes_of(path, name))


def test_what_is_converted_needs_no_second_copy_either(path: Path) -> None:
    whole = load(path, "half", dtype=torch.float32)
    assert torch.equal(through_a_kernel(whole), bytes_of(path, "half").float())
    heads = load(path, "t", head=20)
    assert torch.equal(heads.cpu(), bytes_of(path, "t").view(5, 10, 2, -1).transpose(1, 2).reshape(ROWS, -1))


def test_a_view_keeps_its_tensor() -> None:
    x = torch.empty(2, 8, device=MPS)[1]
    allocated = mock.allocated()
    view = devices.METAL.host_view(x).copy_(torch.arange(8.0))
    assert view.device.type == "cpu" and torch.equal(through_a_kernel(x), view)
    del x
    assert mock.allocated() == allocated and view.tolist() == list(range(8))
    del view
    assert mock.allocated() == allocated - 64
    assert devices.METAL.host_view(torch.empty(0, device=MPS)).device.type == "mps"


def test_memory_is_not_written_before_the_gpu_is_done_with_it(setting: Callable[[str, int], None]) -> None:
    """Torch gives the memory of a freed tensor to the next one while the GPU may have yet to read it."""
    setting("recycle", 1)
    old, y = torch.full((4096,), 7, dtype=torch.uint8, device=MPS), torch.zeros(4096, dtype=torch.uint8, device=MPS)
    OWN.same(old, y)
    place = old.untyped_storage().data_ptr()
    del old
    new = torch.empty(4096, dtype=torch.uint8, device=MPS)
    assert new.untyped_storage().data_ptr() == place
    devices.METAL.host_view(new).fill_(9)
    assert y.cpu().eq(7).all() and new.cpu().eq(9).all()


def test_no_view_of_what_has_no_place_of_its_own() -> None:
    for bad in (torch.zeros(4), torch.empty(4, 4, device=MPS)[:, 1], torch.empty(0, device=MPS)):
        with pytest.raises(ValueError, match="expected a contiguous tensor on mps"):
            foundry._metal_host_view(bad)


# --------------------------------------------------------------------------------------------------- where files lie


def test_mapped_weights_are_the_pages_of_the_file(path: Path) -> None:
    allocated = mock.allocated()
    mock.trace()
    for name in ("t", "half"):
        expected = bytes_of(path, name)
        weight = load(path, name, mmap=True)
        assert weight.device.type == "mps" and mock.allocated() == allocated and maps_of(path) == 1
        assert weight.storage_offset() > 0, "it doesn't begin with a page"
        assert torch.equal(through_a_kernel(weight), expected)
        with open(path, "r+b") as file:  # seen through the page cache: no copy was made
            with open_gguf(path) as container:
                at = container.tensors[name].offset
            file.seek(at)
            file.write(b"\1\2")
        assert through_a_kernel(weight).view(-1).view(torch.uint8)[:2].tolist() == [1, 2]
        del weight
        assert maps_of(path) == 0
    assert mock.trace().count("no copy") == 2


def test_pages_stay_until_the_gpu_is_done(path: Path) -> None:
    expected = bytes_of(path, "t")
    weight = load(path, "t", mmap=True).view(-1)
    y = torch.empty_like(weight)
    OWN.same(weight, y)
    del weight
    assert maps_of(path) == 1
    assert torch.equal(y.cpu().view_as(expected), expected) and maps_of(path) == 0


def test_pages_that_metal_refuses_are_read(path: Path, setting: Callable[[str, int], None]) -> None:
    expected = bytes_of(path, "t")
    setting("max_buffer", expected.nbytes + 512)  # enough for the tensor, not for the pages around it
    weight = load(path, "t", mmap=True)
    assert maps_of(path) == 0 and torch.equal(weight.cpu(), expected)


def test_a_file_that_was_replaced_is_not_mapped(path: Path) -> None:
    with open_gguf(path) as container:
        path.with_name("other").write_bytes(path.read_bytes())
        os.replace(path.with_name("other"), path)
        with pytest.raises(LoadError) as caught:
            container.mapped("t", MPS)
    assert caught.value.code == "CHANGED"


# ------------------------------------------------------------------------------------------------------ read by Metal


def test_read_by_metal(path: Path, by_metal: None) -> None:
    mock.trace()
    for name in ("t", "half"):
        assert torch.equal(through_a_kernel(load(path, name)), bytes_of(path, name))
    assert mock.trace().count("load") == 2
    load(path, "half", dtype=torch.float32)  # converted: by the CPU
    assert mock.trace().count("load") == 0


def test_large_tensors_are_read_in_several_commands(tmp_path: Path, by_metal: None) -> None:
    values = torch.arange(20 << 20, dtype=torch.int16).view(torch.bfloat16).view(-1, 1024)
    write_gguf(tmp_path / "m", {"general.architecture": "none"}, {"t": Tensor(values.shape, "bf16", lambda: values)})
    mock.trace()
    with open_gguf(tmp_path / "m") as container:
        found = (
            WeightReader(container, False, lambda name: False).weight(container.tensors["t"], values.shape).load(MPS)
        )
    assert mock.trace().count("load") == 3
    assert torch.equal(found.cpu().view(torch.int16), values.view(torch.int16))


def test_what_metal_reads_is_looked_at(path: Path, by_metal: None) -> None:
    with open_gguf(path) as container:
        at = container.tensors["t"].offset + 34 * 1000
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(np.array([np.nan], np.float16).tobytes())
    with pytest.raises(LoadError) as caught:
        load(path, "t")
    assert (caught.value.code, caught.value.offset) == ("NONFINITE", at)


@pytest.mark.parametrize("what", ["replaced", "truncated", "gone"])
def test_a_file_that_changes_while_metal_reads_it(what: str, path: Path, by_metal: None) -> None:
    def change() -> None:
        if what == "replaced":
            path.with_name("other").write_bytes(path.read_bytes())
            os.replace(path.with_name("other"), path)
        elif what == "truncated":
            os.truncate(path, 1000)
        else:
            path.unlink()

    with open_gguf(path) as container:
        source = WeightReader(container, False, lambda name: True)
        weight = source.weight(container.tensors["t"], (ROWS, COLUMNS))
        file = container._file(container.tensors["t"])
        check, calls = file.check, iter((lambda: None, change))

        def then_change() -> None:
            check()
            next(calls, lambda: None)()

        file.check = then_change  # type: ignore[method-assign]
        next(calls)
        with pytest.raises(LoadError) as caught:
            weight.load(MPS)
    assert caught.value.code == "CHANGED"


def test_a_system_that_has_no_such_queues(path: Path, by_metal: None, setting: Callable[[str, int], None]) -> None:
    setting("io", 0)
    with pytest.raises(LoadError, match="not supported on this device") as caught:
        load(path, "t")
    assert caught.value.code == "IO"


# -------------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize("way", ["read", "mmap", "metal"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3moe"])
def test_models(way: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight is the one that the CPU gets."""
    if way == "metal":
        monkeypatch.setenv("TORCH_FOUNDRY_METAL_IO", "1")
    path = tmp_path / "m.gguf"
    gguf_models.write(path, architecture, gguf_models.make(architecture))
    options: dict[str, Any] = {"dtype": torch.float32, "progress": False, "allow": ("VOCAB_MISSING",)}
    expected = torch_foundry.load(path, device="cpu", **options)[0].state_dict()
    mock.trace()
    found = torch_foundry.load(path, device="mps", mmap=way == "mmap", **options)[0].state_dict()
    events = mock.trace()
    assert {"read": not {"no copy", "load"} & {*events}, "mmap": "no copy" in events, "metal": "load" in events}[way]
    assert found.keys() == expected.keys() and {t.device.type for t in found.values()} == {"mps"}
    assert all(torch.equal(found[name].cpu(), value) for name, value in expected.items())
