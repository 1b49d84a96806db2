"""`make bench` has every op."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from benchmarks.test_ops import benches, cases

PREFIX = "torch_foundry::"
BENCHES = dict(benches())
ROUTERS = ("moe_choose", "moe_route")  # whose matrix is never packed


def ops() -> set[str]:
    """The ops that launch kernels: those with a schema of FOUNDRY_OP, which says what autograd does."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = [name for name in torch._C._dispatch_get_all_op_names() if name.startswith(PREFIX)]
    return {name.removeprefix(PREFIX) for name in names if has(name, "Autograd")}


class Called(TorchDispatchMode):
    """Names of the ops that are called, none of which runs."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix(PREFIX)
        if name not in ops():
            return func(*args, **(kwargs or {}))
        self.names.add(name)
        given = tree_map_only(Tensor, lambda x: x.to("meta"), (args, kwargs or {}))
        return tree_map_only(Tensor, lambda x: torch.zeros(x.shape, dtype=x.dtype), func(*given[0], **given[1]))


def test_every_op_is_in_a_benchmark() -> None:
    assert len(BENCHES) == len(list(benches())) and {"linear", "norm_qkv", "sample"} <= ops()
    called = set()
    for bench in BENCHES.values():
        given = bench.inputs(*min(cases(bench), key=lambda pair: bench.cost(*pair)[1]))
        with Called() as seen:
            bench.run(**given)
        called |= seen.names
    assert called == ops()


def formats(case: Any) -> set[str | None]:
    """Of a case's weights, if they may be packed."""
    if not dataclasses.is_dataclass(case):
        return set()
    names = {field.name for field in dataclasses.fields(case)}
    return set(getattr(case, "formats", ())) | ({case.format} if "format" in names else set())


@pytest.mark.parametrize("name", BENCHES)
def test_costs_and_formats(name: str) -> None:
    """Each case once, and some with packed weights where those of the op's tests have them."""
    found = cases(BENCHES[name])
    assert len({(str(case), dtype) for case, dtype in found}) == len(found)
    known = {format for case, _ in found for format in formats(case)}
    assert not known or "q8_0" in known or name in ROUTERS
    assert all(moved > 0 and flops >= 0 for flops, moved in (BENCHES[name].cost(*pair) for pair in found))
