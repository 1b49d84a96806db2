"""Memory of attention: what the command counts is what there is, and what RESULTS.md says of ours."""

from __future__ import annotations

import pytest
import torch

from benchmarks import bench_attention_memory as bench
from benchmarks.harness.allocations import most_allocated
from benchmarks.results import RECORDS


def test_what_is_counted() -> None:
    """Tensors that are there at the same time, not those that are gone, nor views."""

    def step() -> torch.Tensor:
        first = torch.zeros(1000)
        second = first + 1
        del first
        return torch.zeros(500, dtype=torch.uint8).view(5, 100)[:, 1:] + second[0].to(torch.uint8)

    assert 8000 <= most_allocated(step) < 8600
    assert most_allocated(lambda: torch.zeros(1000)[1:]) == 4000


@pytest.mark.parametrize("queries", bench.QUERIES)
def test_attention(queries: int) -> None:
    """Ours never has scores; a prompt's memory doesn't depend on what came before. As recorded."""
    context = bench.CONTEXTS[0]
    found = bench.measure(queries, context)
    output = bench.HEADS * queries * bench.HEAD_DIM * 4
    assert found["eager"] >= bench.HEADS * queries * context * 4 + output
    assert output <= found["patched"] and (queries == 1 or found["patched"] == output)
    lines = (RECORDS / "any-machine" / "attention_memory.md").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"| {queries} | {context:,} |")]
    assert line.endswith(f"| {found['patched'] / 1024:,.1f} |")
