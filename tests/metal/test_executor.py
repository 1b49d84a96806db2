"""The Metal executor on the mock: what it encodes, when it hands work over, and what it says instead of aborting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torch_foundry
from torch_foundry import compile_shader, ops, runtime

mock = torch.ops.mock_metal
foundry = torch.ops.torch_foundry
ROWS, HIDDEN = 3, 256


@pytest.fixture
def given() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, HIDDEN, generator=g), torch.randn(HIDDEN, generator=g)


@pytest.fixture
def interval() -> Iterator[None]:
    yield
    foundry._metal_commit_interval(100)


def events(*kinds: str) -> list[str]:
    """What was asked of the GPU since the last call, as far as it begins with one of `kinds`."""
    return [event for event in mock.trace() if event.startswith(kinds)]


def test_names() -> None:
    assert runtime.executor("mps") == "metal"
    assert foundry._family("mps") == "apple9"
    info = dict(foundry._metal_info())
    assert info["name"] == "Mock GPU" and info["unified_memory"] == "true"


def test_launches_share_one_encoder(given: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, w = (t.to("mps") for t in given)
    y = ops.rms_norm(x, w, 1e-6)
    mock.synchronize()
    mock.trace()
    for _ in range(5):
        y = ops.rms_norm(y, w, 1e-6)
    first, *launches = events("compute encoder", "dispatch", "commit", "compile", "pipeline")
    assert first == "compute encoder"
    assert len(launches) == 5 and all(event.startswith("dispatch rms_norm<float, Llama") for event in launches)
    expected = given[0]
    for _ in range(6):
        expected = ops.rms_norm(expected, given[1], 1e-6)
    assert torch.equal(y.cpu(), expected)


def test_storage_offsets(given: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, w = given
    found = []
    for device in ("cpu", "mps"):
        buffer = torch.full((ROWS * HIDDEN + 8,), float("nan"), device=device)
        view = buffer[5 : 5 + ROWS * HIDDEN].view(ROWS, HIDDEN).copy_(x)
        found.append(ops.rms_norm(view, w.to(device), 1e-6).cpu())
    assert torch.equal(*found) and found[0].isfinite().all()


@pytest.mark.parametrize("every, commits", [(0, 0), (4, 3), (100, 0)])
def test_work_is_handed_over(
    every: int, commits: int, given: tuple[torch.Tensor, torch.Tensor], interval: None
) -> None:
    x, w = (t.to("mps") for t in given)
    ops.rms_norm(x, w, 1e-6)
    mock.synchronize()
    foundry._metal_commit_interval(1)
    ops.rms_norm(x, w, 1e-6)  # starts the count anew
    foundry._metal_commit_interval(every)
    mock.synchronize()
    mock.trace()
    for _ in range(12):
        ops.rms_norm(x, w, 1e-6)
    assert len(events("commit")) == commits


def test_threads_beyond_the_pipelines_limit_are_refused() -> None:
    before = mock.set("max_threads", 64)  # as for a kernel that needs many registers
    try:
        kernel = compile_shader(
            "kernel void k(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] = 3 * i; }"
        ).k
        y = torch.zeros(256, device="mps")
        with pytest.raises(RuntimeError, match=r"threadgroup of 128 x 1 x 1 threads.* at most 64"):
            kernel(y, group_size=128)
        kernel(y, group_size=64)
        assert y.tolist() == [3 * i for i in range(256)]
    finally:
        mock.set("max_threads", before)


def test_threadgroup_memory_beyond_the_limit_is_refused() -> None:
    kernel = compile_shader(
        "kernel void k(device float* y [[buffer(0)]], threadgroup float* m [[threadgroup(0)]],\n"
        "              uint i [[thread_position_in_threadgroup]]) { m[i] = i; y[i] = m[i]; }"
    ).k
    y = torch.zeros(8, device="mps")
    with pytest.raises(RuntimeError, match="32784 bytes of threadgroup memory, this GPU has 32768"):
        kernel(y, threadgroup_memory=[32784])
    kernel(y, threadgroup_memory=[20])  # rounded up to Metal's multiple of 16
    assert y.tolist() == list(range(8))


def test_errors_of_a_shader_name_its_line() -> None:
    library = compile_shader(
        "#include <metal_stdlib>\nusing namespace metal;\n"
        "kernel void k(device float* y [[buffer(0)]]) {\n  y[0] = undeclared;\n}\n"
    )
    with pytest.raises(RuntimeError, match=r":4:\d+: error: .*undeclared"):
        library.k(torch.zeros(1, device="mps"))


def test_failure_of_a_command_buffer_is_reported_and_passes(given: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, w = (t.to("mps") for t in given)
    ops.rms_norm(x, w, 1e-6)
    mock.synchronize()
    mock.set("fail_command_buffer", 1)
    y = ops.rms_norm(x, w, 1e-6)
    with pytest.raises(RuntimeError, match="command-buffer-error"):
        y.cpu()
    assert torch.equal(ops.rms_norm(x, w, 1e-6).cpu(), ops.rms_norm(*given, 1e-6))


# ---------------------------------------------------------------------------------------------------------------- tapes


@pytest.fixture(params=["encoded again", "indirect"])
def tapes(request: pytest.FixtureRequest) -> Iterator[str]:
    foundry._metal_icb(request.param == "indirect")
    yield request.param
    foundry._metal_icb(False)


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
        return ops.argmax(ops.rms_norm(ops.linear(ops.glu(gate, up), t["down"]), t["norm"], 1e-6))


def test_tapes(tapes: str) -> None:
    chain, expected = Chain("mps"), Chain("cpu")
    chain.run()
    with torch_foundry.record() as tape:
        y = chain.run()
    tape.replay()
    for scale in (3.0, -0.5):
        for each in (chain, expected):
            each.given["x"].mul_(scale)
        mock.synchronize()
        mock.trace()
        tape.replay()
        found = events("compute encoder", "dispatch", "icb")
        assert found[0] == "compute encoder" and found.count("compute encoder") == 1
        if tapes == "indirect":
            assert sum(int(event.removeprefix("icb x")) for event in found[1:]) == len(tape)
        else:
            assert len(found) == 1 + len(tape)
        assert torch.equal(y.cpu(), expected.run())


def test_a_tape_may_go_before_the_gpu_is_done(tapes: str) -> None:
    chain = Chain("mps")
    expected = chain.run()
    with torch_foundry.record() as tape:
        y = chain.run()
    y.zero_()
    tape.replay()
    del tape, chain  # the session looks for uses of what was freed
    assert torch.equal(y.cpu(), expected.cpu())


def test_m1_and_m2_see_each_pipeline_before() -> None:
    before = mock.set("family", 1008)
    foundry._metal_icb(True)
    try:
        test_tapes("indirect")
    finally:
        mock.set("family", before)
        foundry._metal_icb(False)


def test_a_driver_that_refuses_indirect_commands() -> None:
    kernel = compile_shader(
        "kernel void k(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] += 1; }"
    ).k
    before = mock.set("icb", 0)
    foundry._metal_icb(True)
    try:
        y = torch.zeros(8, device="mps")
        with torch_foundry.record() as tape:
            kernel(y)
        with pytest.warns(UserWarning, match="encoded again at each replay: k can't be used in an indirect"):
            tape.replay()
        tape.replay()
        assert y.tolist() == [3.0] * 8
    finally:
        mock.set("icb", before)
        foundry._metal_icb(False)
