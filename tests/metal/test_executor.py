"""The Metal executor on the mock: what it encodes, when it hands work over, and what it says instead of aborting."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torch_foundry import compile_shader, ops
from torch_foundry.core import environment, runtime
from torch_foundry.core.graph import capture
from torch_foundry.sampling import Settings
from torch_foundry.sampling.sampler import Sampler

mock = torch.ops.mock_metal
foundry = torch.ops.torch_foundry
ROWS, HIDDEN = 3, 256


@pytest.fixture
def given() -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    return torch.randn(ROWS, HIDDEN, generator=g), torch.randn(HIDDEN, generator=g)


@pytest.fixture
def interval() -> Iterator[None]:
    before = foundry._metal_commit_interval(100)
    yield
    foundry._metal_commit_interval(before)


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
    assert len(launches) == 5 and all(event.startswith("dispatch rms_norm_float__Llama") for event in launches)
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
    runtime.commit_every(1)
    ops.rms_norm(x, w, 1e-6)  # starts the count anew
    runtime.commit_every(every)
    mock.synchronize()
    mock.trace()
    for _ in range(12):
        ops.rms_norm(x, w, 1e-6)
    assert len(events("commit")) == commits


def test_work_is_handed_over_by_hand(given: tuple[torch.Tensor, torch.Tensor], interval: None) -> None:
    x, w = (t.to("mps") for t in given)
    runtime.commit_every(4)
    runtime.commit()
    mock.synchronize()
    mock.trace()
    for _ in range(3):  # each token's three launches; the count starts anew
        for _ in range(3):
            y = ops.rms_norm(x, w, 1e-6)
        runtime.commit()
    assert [event.split()[0] for event in events("commit", "dispatch")] == [
        "dispatch",
        "dispatch",
        "dispatch",
        "commit",
    ] * 3
    assert torch.equal(y.cpu(), ops.rms_norm(*given, 1e-6))


@pytest.mark.parametrize("launches", [-1, 2**31, 1.5, "many"])
def test_a_commit_policy_that_is_none(launches: object, interval: None) -> None:
    with pytest.raises(ValueError, match=r"expected 0 \(when torch does\) or a number of launches"):
        runtime.commit_every(launches)  # type: ignore[arg-type]
    assert foundry._metal_commit_interval(100) == 100


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


def test_a_threadgroup_larger_than_registers_leave_room_for() -> None:
    """Apple's compiler takes registers until a threadgroup can have no more than 384 threads, unless it is told that it
    must have more: then the kernel is compiled again, once for each power of two."""
    kernel = compile_shader(
        "kernel void roomy(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) { y[i] = 3 * i; }"
    ).roomy
    y = torch.zeros(2048, device="mps")
    mock.trace()
    for group in (384, 1024, 400, 1024, 512, 64):
        kernel(y.zero_(), group_size=group)
        assert y.tolist() == [3 * i for i in range(2048)]
    assert events("pipeline") == ["pipeline roomy"] * 3


@pytest.mark.parametrize("how", environment.REPLAYS.allowed)
def test_a_graphs_threadgroup_larger_than_registers_leave_room_for(how: str) -> None:
    x, w = torch.randn(2, 16384), torch.ones(16384)
    placed = x.to("mps"), w.to("mps")
    foundry._metal_replays(how)
    try:
        with capture() as graph:
            y = ops.rms_norm(*placed, 1e-6)  # 1024 threads
        y.zero_()
        graph.replay()
        assert torch.equal(y.cpu(), ops.rms_norm(x, w, 1e-6))
    finally:
        foundry._metal_replays("serial")


def test_a_draw_fits_an_m1() -> None:
    """An M1 has registers for 640 threads of sample_draw (by Mesa's compiler): none need be spilled."""
    before = mock.set("free_threads", 640)
    try:
        settings = Settings(do_sample=True, top_k=50, top_p=0.9)
        sampler = Sampler(settings, torch.zeros(1, 1, dtype=torch.int64, device="mps"), vocab_size=151936, capacity=2)
        mock.trace()
        sampler.step(torch.randn(1, 151936).to("mps"))
        sampler.check()
        assert [event.split("_")[1] for event in events("pipeline sample_draw")] == ["draw"]
    finally:
        mock.set("free_threads", before)


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


def test_empty_tensors_have_no_buffer() -> None:
    """Torch allocates none for them; a kernel that has an argument for one runs all the same."""
    kernel = compile_shader(
        "kernel void k(device float* y [[buffer(0)]], device const float* x [[buffer(1)]], constant uint& n\n"
        "              [[buffer(2)]], uint i [[thread_position_in_grid]]) { y[i] = i < n ? x[i] : 7; }"
    ).k
    y, x = torch.zeros(4, device="mps"), torch.ones(4, device="mps")
    for empty in (torch.empty(0, device="mps"), x[4:]):
        kernel(y.zero_(), empty, 0)
        assert y.tolist() == [7.0] * 4
    kernel(y, x, 4)
    assert y.tolist() == [1.0] * 4


WORDS = "kernel void k(device uint* y [[buffer(0)]], constant uint* x [[buffer(1)]], constant uint* z [[buffer(2)]],\n"
WORDS += "              uint i [[thread_position_in_grid]]) { y[i] = x[i] ^ z[i]; }"


@pytest.mark.parametrize("device", ["cpu", "mps"])
@pytest.mark.parametrize("words", [100, 1024, 1025, 30000])
def test_arguments_by_value_of_any_length(words: int, device: str) -> None:
    """4 KiB is what setBytes takes; beyond, a buffer goes with the launch."""
    x, z = torch.arange(words, dtype=torch.int32), torch.arange(words, dtype=torch.int32).flip(0) << 8
    y = torch.zeros(words, dtype=torch.int32, device=device)
    mock.synchronize()
    buffers = mock.alive()["MockBuffer"]
    compile_shader(WORDS).k(y, x.numpy().tobytes(), z.numpy().tobytes())
    assert mock.alive()["MockBuffer"] - buffers == (2 if words > 1024 and device == "mps" else 0)
    assert torch.equal(y.cpu(), x ^ z)
    assert mock.alive()["MockBuffer"] == buffers


def test_no_memory_for_arguments_by_value() -> None:
    before = mock.set("max_buffer", 8000)
    try:
        y = torch.zeros(4, dtype=torch.int32, device="mps")
        with pytest.raises(RuntimeError, match="k: Metal has no memory for 8004 bytes of arguments by value"):
            compile_shader(WORDS).k(y, bytes(8004), bytes(16))
    finally:
        mock.set("max_buffer", before)


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
