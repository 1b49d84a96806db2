"""doctor's checks are tested: the mistakes that the ops' tests are tested with make them fail as well."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit import Fault
from test_faults import FAULTS

from torch_foundry.core import runtime
from torch_foundry.diagnostics.doctor import selfcheck
from torch_foundry.testing import tolerance, weights

# Fault -> words in the names of the checks that are there for it: one for each kernel file, and those that the first
# version of the checks did not notice.
SEEDED = {
    "attention-kv-start-ignored": "attention padding",
    "attention-mask-of-the-first-head": "attention mask, 2 queries",
    "attention-prefill-unwritten-keys-staged": "attention prefill",
    "embedding-row-of-id-0": "embedding dense",
    "glu-tanh-constant": "glu gelu_tanh",
    "linear-epilogue-scale-ignored": "linear [3, 256], scale",
    "linear-last-output-not-stored": "linear dense [1, 264]",
    "linear-sum-depends-on-the-number-of-rows": "linear q8_0: a row",
    "q4_0-zero-point": "linear q4_0: one-hot",
    "permute_columns-norm_weight": "permute_columns",
    "rms_norm-residual-read-with-the-strides-of-x": "rms_norm: rows",
    "rope-cache-written-one-token-late": "rope_kv 3 tokens",
    "decode-eps-ignored": "norm_linear dense",
    "decode-bias-of-the-first": "norm_linear dense",
    "decode-gate-and-up-exchanged": "norm_glu dense",
    "decode-sign-of-sin": "norm_qkv dense",
    "moe-last-of-equals": "moe_choose 8 of 60 bfloat16",
    "moe-shared-row-as-an-expert": "moe_route",
    "moe-gate-of-expert-0": "moe_glu dense",
    "moe-weights-of-the-first-token": "moe_down q8_0",
    "moe-last-pair-of-a-tile": "moe_linear q4_0",
    "moe-ids-of-no-expert-combined": "moe_linear dense",
}
CHECKS = selfcheck.suite(quick=False)


def test_every_fault_is_one_of_the_ops_tests() -> None:
    assert {fault.name for fault in FAULTS} >= set(SEEDED)


def _sampler(name: str, old: str, new: str, file: str = "") -> Fault:
    return Fault(name, "sample.metal", old, new, lambda: None, file)


SAMPLER = {
    _sampler("greedy-highest-of-equals", "if (k > key) {", "if (k >= key) {"): "sample: the largest",
    _sampler("temperature-multiplies", "s /= params", "s *= params"): "sample: temperature",
    _sampler("philox-nine-rounds", "round < 10", "round < 9", "philox.h"): "sample: top-k",
}
NOTICED = {**{fault: SEEDED[fault.name] for fault in FAULTS if fault.name in SEEDED}, **SAMPLER}


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("fault", NOTICED, ids=str)
def test_a_fault_is_noticed(fault: Fault, tmp_path: Path) -> None:
    directory = fault.seed(tmp_path)
    checks = [check for check in CHECKS if NOTICED[fault] in check.name]
    assert checks
    checks[0].run("cpu")
    with runtime.use_shaders(directory), tolerance.poisoned_outputs():
        for check in checks:
            try:
                check.run("cpu")
            except tolerance.Mismatch:
                return
    pytest.fail(f"none of {len(checks)} checks notices it")


def test_names_tell_checks_apart() -> None:
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    for name in weights.samples():
        assert any(name in check for check in names), f"{name} is not checked"


def test_quick_is_a_part() -> None:
    quick = {check.name for check in selfcheck.suite(quick=True)}
    assert quick < {check.name for check in CHECKS}


@pytest.mark.tier("nightly")
@pytest.mark.parametrize("check", selfcheck.suite(quick=True), ids=lambda check: check.name)
def test_checks_hold_where_subnormals_are_zero(check: selfcheck.Check) -> None:
    """As on Apple's GPUs."""
    with runtime.host_options(flush_subnormals=True), tolerance.poisoned_outputs():
        check.run("cpu")
