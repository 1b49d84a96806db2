"""What the types of devices have in common."""

from __future__ import annotations

import pytest
import torch

from torch_foundry.core.devices.base import Device


def test_memory_that_the_device_writes_to_is_not_given_up_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if nobody waits, as behind an error: a copy to the host goes on then."""
    seen: list[str] = []

    class Event:
        def __init__(self, **_: object) -> None:
            pass

        def record(self) -> None:
            seen.append("record")

        def synchronize(self) -> None:
            seen.append("wait")

    monkeypatch.setattr(torch, "Event", Event)
    host, _wait = Device().read(torch.ones(3))
    assert seen == ["record"] and torch.equal(host, torch.ones(3))
    del host
    assert seen == ["record", "wait"]
