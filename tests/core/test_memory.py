"""What a device has room for, by what it says of itself and by what the user says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torch_foundry.core import devices, memory

CPU = torch.device("cpu")
GIB = 1 << 30


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with 4 GiB, of which one is in use."""
    monkeypatch.setattr(type(devices.HOST), "working_set", lambda self, device: (4 * GIB, GIB))


def test_the_error_says_what_was_asked_what_is_free_and_what_fits(four: None) -> None:
    memory.check(CPU, 3 * GIB, "a thing")
    with pytest.raises(memory.DoesNotFit) as caught:
        memory.check(CPU, 3 * GIB + 1, "a thing", lambda left: f"{left // GIB} would fit.")
    assert str(caught.value) == (
        "no room for a thing: 3.00 GiB are needed on cpu and 3.00 GiB are free. 3 would fit. "
        "TORCH_FOUNDRY_MEMORY_LIMIT (MiB) sets another limit than the device's, 0 none."
    )
    assert isinstance(caught.value, torch.OutOfMemoryError)


@pytest.mark.parametrize(("limit", "free"), [("", 3 * GIB), ("0", None), ("2048", GIB), ("8192", 7 * GIB), ("1", 0)])
def test_the_limit_is_the_users(limit: str, free: int | None, four: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FOUNDRY_MEMORY_LIMIT", limit)
    assert memory.free(CPU) == free


def test_nothing_is_refused_on_the_cpu() -> None:
    assert memory.free(CPU) is None and memory.free(torch.device("meta")) is None
    memory.check(CPU, 1 << 60, "a thing")


def test_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch's allocator has and doesn't use is free; nobody asks while a graph is captured."""
    stats = {"reserved_bytes": {"all": {"current": 6}}, "allocated_bytes": {"all": {"current": 4}}}
    said: dict[str, Any] = {"mem_get_info": (3, 10), "memory_stats_as_nested_dict": stats}
    for name, value in said.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    capturing = False
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    assert memory.free(torch.device("cuda")) == 5
    capturing = True
    assert memory.free(torch.device("cuda")) is None
