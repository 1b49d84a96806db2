"""Our encoders of K and IQ4 formats: no more error than ggml's, and what no encoder may do.

The oracle's figures are those of `quantize_row_<format>_ref` (no importance matrix) in the ggml that
llama-cpp-python 0.3.36's source distribution contains, compiled by gcc -O3 for x86-64 with AVX2, for the weights that
`weights` makes. Blocks were decoded by the `gguf` package, here and there.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from torch_foundry import quant

ROWS, COLUMNS = 32, 2048
# Root mean square errors of the oracle: normal, Student's t, outlier columns, uniform, rows of one sign.
ORACLE: dict[str, tuple[float, ...]] = {
    "q2_k": (0.005890823, 0.009686891, 0.0111011, 0.002697282, 0.00374275),
    "q3_k": (0.003006586, 0.005189016, 0.006987812, 0.001444106, 0.002893744),
    "q4_k": (0.001421008, 0.002433838, 0.004419899, 0.0006311216, 0.0008461875),
    "q5_k": (0.0007205424, 0.001232877, 0.002253877, 0.0003194778, 0.0004151088),
    "q6_k": (0.0003560389, 0.0006408336, 0.001482805, 0.0001560897, 0.0003531975),
    "iq4_nl": (0.00157216, 0.002673217, 0.005613646, 0.0007783722, 0.001550488),
    "iq4_xs": (0.001532856, 0.002661828, 0.005635071, 0.0007442859, 0.001504057),
}
KINDS = ("normal", "heavy tails", "outlier columns", "uniform", "one sign")
encoders = pytest.mark.parametrize("name", ORACLE)


def weights(kind: str) -> Tensor:
    """[ROWS, COLUMNS] f32, from numpy's frozen generator."""
    g = np.random.RandomState(KINDS.index(kind))
    shape = (ROWS, COLUMNS)
    w = 0.02 * (
        g.standard_t(4, shape)
        if kind == "heavy tails"
        else g.uniform(-1, 1, shape)
        if kind == "uniform"
        else g.standard_normal(shape)
    )
    if kind == "outlier columns":
        w[:, 5::97] *= 20
    return torch.from_numpy((np.abs(w) if kind == "one sign" else w).astype(np.float32))


def decoded(blocks: Tensor, name: str) -> Tensor:
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType(quant.get_format(name).gguf_type)
    return torch.from_numpy(gguf.dequantize(blocks.numpy(), kind))


def rms_error(w: Tensor, name: str) -> float:
    return float((decoded(quant.quantize(w, name), name).double() - w.double()).square().mean().sqrt())


@encoders
@pytest.mark.parametrize("kind", KINDS)
def test_no_more_error_than_ggml(name: str, kind: str) -> None:
    assert rms_error(weights(kind), name) <= ORACLE[name][KINDS.index(kind)]


def test_all_encoders_without_a_reference_in_gguf_are_here() -> None:
    """The others give the bytes of gguf (test_formats.py), or have a formula (test_formats.py, test_packs.py)."""
    known = {name for name in quant.PACKABLE if name.endswith("_k") or name.startswith("iq")}
    assert known == set(ORACLE)


@encoders
def test_importance(name: str) -> None:
    """Where it differs, the error that it counts is less; where it doesn't, and in other formats, nothing changes."""
    w, generator = weights("normal"), torch.Generator().manual_seed(5)
    factors = torch.rand(w.shape[1], generator=generator) ** 4
    factors[::50] = 0.0

    def error(packed: torch.Tensor) -> float:
        return float((factors.double() * (decoded(packed, name) - w).double() ** 2).sum())

    plain = quant.quantize(w, name)
    assert error(quant.quantize(w, name, factors)) < 0.9 * error(plain)
    for even in (torch.full_like(factors, 3.0), torch.zeros_like(factors)):
        assert torch.equal(quant.quantize(w, name, even), plain)


def test_importance_that_is_none() -> None:
    w = weights("normal")
    assert torch.equal(quant.quantize(w, "q8_0", torch.rand(w.shape[1])), quant.quantize(w, "q8_0"))
    for bad in (torch.ones(7), torch.ones(w.shape[1], dtype=torch.int32)):
        with pytest.raises(ValueError, match=r"importance: expected a floating-point \[\d+\], got"):
            quant.quantize(w, "q4_k", bad)
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="importance: expected finite values from 0 on"):
            quant.quantize(w, "q4_k", torch.full((w.shape[1],), value))


@encoders
def test_extremes(name: str) -> None:
    """Zeros; one weight among zeros (IQ4 has 1 in 127 for them); one value; what f16 rounds to zero, or nearly."""
    block = quant.get_format(name).block_size
    assert not decoded(quant.quantize(torch.zeros(1, block), name), name).any()
    for magnitude in (1e-3, 1.0, 1000.0):
        single = torch.zeros(1, block)
        single[0, 77 % block] = -magnitude
        got = decoded(quant.quantize(single, name), name)
        assert float((got - single).abs().max()) < 0.008 * magnitude
    constant = torch.full((1, block), -0.7)
    assert float((decoded(quant.quantize(constant, name), name) - constant).abs().max()) < 0.004
    vanishing = torch.full((1, block), 1e-30)
    assert not decoded(quant.quantize(vanishing, name), name).any()
    tiny = torch.full((1, block), 2e-6)
    assert float((decoded(quant.quantize(tiny, name), name) - tiny).abs().max()) <= 2e-6


@encoders
@pytest.mark.parametrize("magnitude", [1e9, 1e20, 3e38])
def test_too_large(name: str, magnitude: float) -> None:
    w = torch.zeros(2, 2 * quant.get_format(name).block_size)
    w[1, -1] = magnitude
    with pytest.raises(RuntimeError, match="weight: values too large for the scale of the format"):
        quant.quantize(w, name)


@encoders
def test_as_large_as_possible(name: str) -> None:
    w = weights("normal") * 5e5  # some 40,000 at most, which each format's scale allows
    assert rms_error(w, name) <= 1.001 * 5e5 * rms_error(weights("normal"), name)


@encoders
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_not_finite(name: str, bad: float) -> None:
    w = torch.zeros(2, 2 * quant.get_format(name).block_size)
    w[1, 3] = bad
    with pytest.raises(RuntimeError, match="weight: expected finite values"):
        quant.quantize(w, name)


@pytest.mark.parametrize("name", ["q4_K", "Q4_K", "q4_k"])
def test_ggmls_spelling(name: str) -> None:
    w = weights("normal")[:2]
    packed = quant.quantize(w, name)
    assert torch.equal(packed, quant.quantize(w, "q4_k"))
    assert torch.equal(quant.dequantize(packed, name), quant.dequantize(packed, "q4_k"))
