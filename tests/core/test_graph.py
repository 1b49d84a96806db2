"""Graphs: a replay does what the captured code did, on what the tensors hold by then, or says why it can't."""

from __future__ import annotations

import gc
import signal
import threading
import weakref

import pytest
import torch
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

import torch_foundry
from torch_foundry import ops
from torch_foundry.core import graph as graphs
from torch_foundry.core import runtime


def block(x: torch.Tensor, weight: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
    """Two launches with a view between them."""
    h = ops.rms_norm(x, norm, 1e-6)
    return ops.linear(h.view(-1, x.shape[-1]), weight, activation="silu").view(*x.shape[:-1], -1)


@pytest.fixture
def given() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 3, 64), torch.randn(48, 64), torch.randn(64)


Given = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def test_a_replay_equals_the_code_on_new_inputs(given: Given) -> None:
    x, weight, norm = given
    first = block(*given)
    with torch_foundry.capture() as graph:
        y = block(*given)
    assert torch.equal(y, first) and len(graph) == 2
    for seed in range(3):
        x.copy_(torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        assert torch.equal(y, block(*given))
    weight.mul_(-2)
    graph.replay()
    assert torch.equal(y, block(x, weight, norm))


def test_replays_are_counted_as_launches(given: Given) -> None:
    block(*given)
    runtime.reset_counters()
    with torch_foundry.capture() as graph:
        block(*given)
    captured = runtime.counters()
    assert captured.launches == 2 and captured.bytes == graph.bytes > 0
    runtime.reset_counters()
    with runtime.scope("again"):
        graph.replay()
        graph.replay()
    assert runtime.counters().launches == 4 and runtime.counters().bytes == 2 * graph.bytes
    assert runtime.scope_counters()["again"].launches == 4


def test_what_the_launches_touch_stays_alive(given: Given) -> None:
    x, weight, norm = (tensor.clone() for tensor in given)
    with torch_foundry.capture() as graph:
        y = block(x, weight, norm)
    expected = y.clone()
    del x, weight, norm
    gc.collect()
    noise = [torch.full((64,), 7.0) for _ in range(100)]  # would take the memory, were it free
    y.zero_()
    graph.replay()
    assert torch.equal(y, expected) and len(noise) == 100


def test_a_graph_lets_go(given: Given) -> None:
    x = given[0].clone()
    with torch_foundry.capture() as graph:
        block(x, *given[1:])
    gone = weakref.ref(x.untyped_storage())
    del x, graph
    gc.collect()
    assert gone() is None


def test_a_cache_is_written_again(given: Given) -> None:
    q, k, v = torch.randn(1, 1, 128), torch.randn(1, 1, 64), torch.randn(1, 1, 64)
    k_cache, v_cache = torch.zeros(1, 1, 8, 64), torch.zeros(1, 1, 8, 64)
    with torch_foundry.capture() as graph:
        ops.rope_kv(q, k, v, None, None, k_cache, v_cache, 3, head_dim=64)
    k.mul_(2)
    k_cache.zero_()
    graph.replay()
    assert torch.equal(k_cache[0, 0, 3], k[0, 0]) and not k_cache[0, 0, 4:].any()


@pytest.mark.parametrize(
    "compute, name",
    [
        (lambda x: x + 1, "aten::add.Tensor"),
        (lambda x: x.add_(1), "aten::add_.Tensor"),
        (lambda x: x.clone(), "aten::clone"),
        (lambda x: x.sum().item(), "aten::sum"),
        (lambda x: x[0, 0, 0].item(), "aten::_local_scalar_dense"),
        (lambda x: torch.zeros_like(x), "aten::zeros_like"),
        (lambda x: x.transpose(0, 1).reshape(-1), "aten::clone"),
        (lambda x: x.copy_(x), "aten::copy_"),
        (lambda x: x.to(torch.float16), "aten::_to_copy"),
    ],
)
def test_what_a_replay_would_not_repeat_is_refused(compute: object, name: str, given: Given) -> None:
    x = given[0]
    with pytest.raises(RuntimeError, match=f"{name}.* can't be captured"), torch_foundry.capture():
        compute(x)  # type: ignore[operator]
    with torch_foundry.capture() as graph:  # the thread can record again
        ops.glu(x, x)
    assert len(graph) == 1


def test_views_and_allocations_are_allowed(given: Given) -> None:
    x = given[0]
    with torch_foundry.capture() as graph:
        torch.empty_like(x)
        x.new_empty(3)
        a, b = x.transpose(0, 1).chunk(2, -1)
        y = ops.glu(a[:, :1].detach(), b.unsqueeze(0).squeeze(0)[:, :1])
    expected = y.clone()
    y.zero_()
    graph.replay()
    assert torch.equal(y, expected)


def test_other_memory_is_noticed(given: Given) -> None:
    x = given[0].clone()
    with torch_foundry.capture() as graph:
        block(x, *given[1:])
    storage = x.untyped_storage()
    x.set_(given[0].clone())
    with pytest.raises(RuntimeError, match=r"launch 0 of the graph \(rms_norm.*\): buffer 0 has other memory"):
        graph.replay()
    x.set_(storage, 0, x.shape, x.stride())
    graph.replay()
    storage.resize_(1 << 20)
    with pytest.raises(RuntimeError, match="other memory"):
        graph.replay()


@pytest.mark.parametrize("offset, rows", [(64, 4), (0, 3)], ids=["another place", "another size"])
def test_another_part_of_the_same_memory_is_noticed(offset: int, rows: int, given: Given) -> None:
    memory = torch.randn(8 * 64)
    x = memory[:256].view(4, 64)
    with torch_foundry.capture() as graph:
        y = ops.rms_norm(x, given[2], 1e-6)
    expected = y.clone()
    x.set_(memory.untyped_storage(), offset, (rows, 64), (64, 1))
    with pytest.raises(RuntimeError, match=r"buffer 0 has other memory"):
        graph.replay()
    x.set_(memory.untyped_storage(), 0, (4, 64), (64, 1))
    y.zero_()
    graph.replay()
    assert torch.equal(y, expected)


def test_replaced_shaders_are_noticed(given: Given) -> None:
    torch.ops.torch_foundry._add_source("something.metal", "x", "x")
    with torch_foundry.capture() as graph:
        block(*given)
    torch.ops.torch_foundry._add_source("something.metal", "x", "x")  # nothing new
    graph.replay()
    torch.ops.torch_foundry._add_source("something.metal", "y", "y")
    with pytest.raises(RuntimeError, match="shaders were replaced since this graph was captured"):
        graph.replay()


def test_graphs_do_not_nest_or_replay_while_recording(given: Given) -> None:
    with torch_foundry.capture() as graph:
        block(*given)
    with torch_foundry.capture():
        with pytest.raises(RuntimeError, match="already capturing"), torch_foundry.capture():
            pass
        with pytest.raises(RuntimeError, match="can't be replayed while one is capturing"):
            graph.replay()
    graph.replay()


def test_only_the_recording_thread_is_recorded(given: Given) -> None:
    def other() -> None:
        ops.glu(given[0], given[0])
        with torch_foundry.capture() as theirs:
            ops.glu(given[0], given[0])
        lengths.append(len(theirs))

    lengths: list[int] = []
    with torch_foundry.capture() as graph:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        ops.glu(given[0], given[0])
    assert len(graph) == 1 and lengths == [1]


def test_an_empty_graph_replays_nothing() -> None:
    with torch_foundry.capture() as graph:
        pass
    assert len(graph) == 0 and graph.bytes == 0
    graph.replay()


def test_what_is_on_a_graph(given: Given) -> None:
    with torch_foundry.capture() as graph, runtime.scope("layers.0"):
        ops.rms_norm(given[0], given[2], 1e-6)
        with runtime.scope("mlp"):
            y = block(*given)
    captured = graph.launches()
    assert [r.scope for r in captured] == ["layers.0", "layers.0.mlp", "layers.0.mlp"]
    assert [r.kernel.split("<")[0] for r in captured] == ["rms_norm", "rms_norm", "linear_rows"]
    assert sum(r.bytes for r in captured) == graph.bytes and all(r.bytes > 0 for r in captured)
    part = graph.part([1, 2])
    expected = y.clone()
    del graph
    y.zero_()
    part.replay()
    assert torch.equal(y, expected) and [r.scope for r in part.launches()] == ["layers.0.mlp"] * 2
    with pytest.raises(RuntimeError, match="launch 2 of a graph of 2"):
        part.part([0, 2])


def test_recordings_are_seen(given: Given) -> None:
    with graphs.captures() as outer, graphs.captures() as inner:
        with torch_foundry.capture() as graph:
            block(*given)
        with pytest.raises(ValueError, match="half way"), torch_foundry.capture():
            raise ValueError("half way")
    with torch_foundry.capture():
        block(*given)
    assert outer == inner == [graph]


def test_ctrl_c_waits_for_the_end_of_a_recording(given: Given) -> None:
    with pytest.raises(KeyboardInterrupt), torch_foundry.capture() as graph:
        block(*given)
        signal.raise_signal(signal.SIGINT)
        block(*given)
    assert len(graph) == 4
    assert torch.ones(2).sum() == 2, "ops of torch are refused no more"
    with torch_foundry.capture() as graph:
        block(*given)
    assert len(graph) == 2


def test_a_graph_that_is_gone_records_no_more(given: Given) -> None:
    left = torch.classes.torch_foundry.LaunchGraph()
    left.start()
    del left
    gc.collect()
    with torch_foundry.capture() as graph:
        block(*given)
    assert len(graph) == 2


def test_recording_in_two_threads_at_a_time(given: Given) -> None:
    """The one that begins last ends last, and leaves no flag of torch's behind, which would be the whole process's."""
    inside, over, lengths = threading.Event(), threading.Event(), []

    def other() -> None:
        with torch_foundry.capture() as graph:
            block(*given)
            inside.set()
            over.wait(60)
        lengths.append(len(graph))

    thread = threading.Thread(target=other)
    with torch_foundry.capture() as graph:
        thread.start()
        inside.wait(60)
        block(*given)
    over.set()
    thread.join()
    assert lengths == [len(graph)] == [2] and not is_in_torch_dispatch_mode()
