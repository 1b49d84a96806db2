"""Graphs on the mock of Metal: encoded again, or as indirect commands, and when the second becomes the first."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import torch_foundry
from tests.metal.test_rules import in_a_child
from torch_foundry import compile_shader, ops
from torch_foundry.core import environment

mock = torch.ops.mock_metal
foundry = torch.ops.torch_foundry
ROWS, HIDDEN = 3, 256

STEP = """#include <metal_stdlib>
using namespace metal;
kernel void count(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] += 1; }
kernel void twice(device float* y [[buffer(0)]], uint i [[thread_position_in_threadgroup]]) { y[i] *= 2; }
kernel void add_some(device float* y [[buffer(0)]], device const float* x [[buffer(1)]], constant uint& n [[buffer(2)]],
                   uint i [[thread_position_in_grid]]) { y[i] += i < n ? x[i] : 1; }
"""


def events(*kinds: str) -> list[str]:
    """What was asked of the GPU since the last call, as far as it begins with one of `kinds`."""
    return [event for event in mock.trace() if event.startswith(kinds)]


@pytest.fixture(params=environment.REPLAYS.allowed)
def graphs(request: pytest.FixtureRequest) -> Iterator[str]:
    """How graphs are replayed."""
    foundry._metal_replays(request.param)
    yield request.param
    foundry._metal_replays("serial")


@pytest.fixture
def indirect() -> Iterator[None]:
    """Graphs as indirect commands; a warning comes each time, not once in the process."""
    before = torch.is_warn_always_enabled()
    foundry._metal_replays("indirect")
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(before)
    foundry._metal_replays("serial")


@pytest.fixture
def setting() -> Iterator[Callable[[str, int], None]]:
    """Sets up the mock, until the test is over."""
    before = {}

    def change(name: str, value: int) -> None:
        before.setdefault(name, mock.set(name, value))

    yield change
    for name, value in before.items():
        mock.set(name, value)


class Chain:
    """Ops of many kinds that depend on each other, and two that don't."""

    def __init__(self, device: str) -> None:
        g = torch.Generator().manual_seed(1)
        sizes = {
            "x": (ROWS, HIDDEN),
            "norm": (HIDDEN,),
            "up": (512, HIDDEN),
            "gate": (512, HIDDEN),
            "down": (HIDDEN, 512),
        }
        self.given = {name: torch.randn(size, generator=g).to(device) * 0.1 for name, size in sizes.items()}

    def run(self) -> torch.Tensor:
        t = self.given
        h = ops.rms_norm(t["x"], t["norm"], 1e-6)
        up, gate = ops.linear(h, t["up"]), ops.linear(h, t["gate"])
        return ops.rms_norm(ops.linear(ops.glu(gate, up), t["down"]), t["norm"], 1e-6)


def captured(launches: int = 1, size: int = 8, comment: str = "") -> tuple[torch.Tensor, torch_foundry.LaunchGraph]:
    """A tensor that counts launches, one for each that was captured so far, and their graph."""
    count = compile_shader(STEP + comment).count
    y = torch.zeros(size, device="mps")
    with torch_foundry.capture() as graph:
        for _ in range(launches):
            count(y)
    return y, graph


def test_graphs(graphs: str) -> None:
    chain, eager = Chain("mps"), Chain("mps")
    chain.run()
    with torch_foundry.capture() as graph:
        y = chain.run()
    graph.replay()
    for scale in (3.0, -0.5):
        for each in (chain, eager):
            each.given["x"].mul_(scale)
        mock.synchronize()
        mock.trace()
        graph.replay()
        found = events("compute encoder", "concurrent encoder", "barrier", "dispatch", "icb")
        assert found.pop(0) == "compute encoder"
        if graphs == "concurrent":  # up and gate are read from what both depend on, and the last norm writes elsewhere
            assert found.pop(0) == "concurrent encoder" and found.count("barrier") == len(graph) - 2
            found = [event for event in found if event != "barrier"]
        assert not any(event.endswith("encoder") for event in found)
        if graphs == "indirect":
            assert sum(int(event.removeprefix("icb x")) for event in found) == len(graph)
        else:
            assert len(found) == len(graph)
        assert torch.equal(y.cpu(), eager.run().cpu())


def test_a_graph_may_go_before_the_gpu_is_done(graphs: str) -> None:
    chain = Chain("mps")
    expected = chain.run()
    with torch_foundry.capture() as graph:
        y = chain.run()
    y.zero_()
    graph.replay()
    del graph, chain  # the session looks for uses of what was freed
    assert torch.equal(y.cpu(), expected.cpu())


def test_empty_tensors(graphs: str) -> None:
    add_some = compile_shader(STEP).add_some
    x = torch.full((4,), 5.0, device="mps")
    for empty in (torch.empty(0, device="mps"), x[4:]):
        y = torch.zeros(4, device="mps")
        with torch_foundry.capture() as graph:
            add_some(y, empty, 0)
            add_some(y, x, 4)
        graph.replay()
        assert y.tolist() == [12.0] * 4


def test_long_arguments_by_value(graphs: str) -> None:
    """A graph keeps them, in a buffer beyond 4 KiB."""
    add_some = compile_shader(STEP).add_some
    values = torch.arange(3000.0)
    y = torch.zeros(3000, device="mps")
    with torch_foundry.capture() as graph:
        add_some(y, values.numpy().tobytes(), 3000)
    for _ in range(2):
        graph.replay()
    del graph
    assert torch.equal(y.cpu(), 3 * values)


def test_threads_replay_one_graph(graphs: str) -> None:
    """The first replays, which make the commands, come at the same time."""
    workers = 6
    with ThreadPoolExecutor(workers) as pool:
        for _ in range(60):
            y, graph = captured(2)
            together = threading.Barrier(workers)

            def replay(graph: torch_foundry.LaunchGraph = graph, together: threading.Barrier = together) -> None:
                together.wait()
                for _ in range(3):
                    graph.replay()

            for done in [pool.submit(replay) for _ in range(workers)]:
                done.result()
            assert y.tolist() == [2.0 + 2 * 3 * workers] * 8


# ------------------------------------------------------------------------------------------------------ concurrent only


@pytest.fixture
def concurrent() -> Iterator[None]:
    foundry._metal_replays("concurrent")
    yield
    foundry._metal_replays("serial")


def test_a_barrier_where_a_launch_depends_on_another(concurrent: None) -> None:
    """A reader behind the writer, a writer behind readers and writers; nothing else."""
    count, x, weight = compile_shader(STEP).count, torch.full((1, 64), 2.0, device="mps"), torch.ones(64, device="mps")
    with torch_foundry.capture() as graph:
        one, other = ops.rms_norm(x, weight, 0.0), ops.rms_norm(x, weight, 0.0)
        last = ops.rms_norm(other, weight, 0.0)
        count(x)  # whose readers are before a barrier already
        count(x)
        ops.rms_norm(x, weight, 0.0)
    one.zero_(), last.zero_()
    mock.synchronize()
    mock.trace()
    graph.replay()
    found = events("dispatch", "barrier")
    assert "".join("|" if event == "barrier" else "." for event in found) == "..|..|.|."
    assert (x.unique().tolist(), one.unique().tolist(), last.unique().tolist()) == ([6.0], [1.0], [1.0])


def test_a_capture_gets_a_serial_encoder(concurrent: None, setting: Callable[[str, int], None]) -> None:
    y, graph = captured(3)
    setting("capturing", 1)
    mock.trace()
    graph.replay()
    assert events("captured", "concurrent") == ["captured"] * 3
    assert y.tolist() == [6.0] * 8


# ----------------------------------------------------------------------------------------------- indirect commands only


def test_a_graph_of_another_threads_stream(indirect: None, setting: Callable[[str, int], None]) -> None:
    """It stays until the stream that it ran on is done with it, not the stream of the thread that lets it go."""
    y, graph = captured(3)
    mock.synchronize()
    setting("thread_streams", 1)
    with ThreadPoolExecutor(1) as other:
        other.submit(graph.replay).result()
        del graph
        mock.synchronize()
        other.submit(mock.synchronize).result()
    setting("thread_streams", 0)
    assert y.tolist() == [6.0] * 8


def test_m1_and_m2_see_each_pipeline_before(indirect: None, setting: Callable[[str, int], None]) -> None:
    setting("family", 1008)
    test_graphs("indirect")


def test_a_graph_of_both_kinds_of_dispatch(indirect: None) -> None:
    """A command buffer holds one kind: where it changes, a part of the graph ends."""
    library = compile_shader(STEP)
    y = torch.zeros(8, device="mps")
    with torch_foundry.capture() as graph:
        library.count(y)
        library.count(y)
        library.twice(y, threadgroups=1, group_size=8)
        library.count(y)
    mock.synchronize()
    mock.trace()
    graph.replay()
    assert events("icb") == ["icb x2", "icb x1", "icb x1"]
    assert y.tolist() == [((0 + 2) * 2 + 1 + 2) * 2 + 1.0] * 8


def test_a_capture_gets_plain_dispatches(indirect: None, setting: Callable[[str, int], None]) -> None:
    y, graph = captured(3)
    graph.replay()
    setting("capturing", 1)
    mock.trace()
    graph.replay()
    assert events("captured", "icb") == ["captured"] * 3
    mock.set("capturing", 0)
    graph.replay()
    assert events("captured", "icb") == ["icb x3"]
    assert y.tolist() == [12.0] * 8


def test_a_capture_gets_long_arguments_by_value(indirect: None, setting: Callable[[str, int], None]) -> None:
    setting("capturing", 1)
    test_long_arguments_by_value("captured")


@pytest.mark.parametrize(
    "name, value, launches, reason",
    [
        ("icb", 0, 1, "count can't be used in an indirect command buffer"),
        ("paravirtual", 1, 1, "the GPU of a virtual machine runs no indirect commands"),
        ("icb", 1, 16385, "this one has more than 16384 launches"),
    ],
    ids=["driver", "virtual machine", "long"],
)
def test_where_indirect_commands_do_not_go(
    name: str, value: int, launches: int, reason: str, indirect: None, setting: Callable[[str, int], None]
) -> None:
    setting(name, value)
    foundry._metal_commit_interval(1000)
    y, graph = captured(launches, size=4, comment=f"// {reason}: pipelines of its own\n")
    mock.synchronize()
    with pytest.warns(UserWarning, match=f"graphs are encoded again at each replay: {reason}"):
        graph.replay()
    mock.synchronize()
    mock.trace()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph.replay()
    found = events("dispatch", "icb")
    assert len(found) == launches and found[0] == "dispatch count"
    assert y.tolist() == [3.0 * launches] * 4
    foundry._metal_commit_interval(100)


def test_the_longest_graph_of_indirect_commands(indirect: None) -> None:
    y, graph = captured(16384, size=4)
    mock.synchronize()
    mock.trace()
    graph.replay()
    assert events("dispatch", "icb") == ["icb x16384"]
    assert y.tolist() == [2.0 * 16384] * 4


def test_the_warning_comes_once(setting: Callable[[str, int], None]) -> None:
    def warnings_of_two_graphs() -> list[str]:
        mock.set("paravirtual", 1)
        foundry._metal_replays("indirect")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                captured()[1].replay()
        return [str(warning.message) for warning in caught]

    (only,) = in_a_child(warnings_of_two_graphs)
    assert "graphs are encoded again" in only
