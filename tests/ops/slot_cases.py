"""What holds of every mixer whose states lie in numbered slots: for the tests of gated_delta, mamba2 and short_conv."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import kit
import torch
from torch import Tensor

Given = dict[str, Any]
Run = Callable[..., Tensor]


def copied(given: Given, to: Any = lambda x: x.clone()) -> Given:
    """The call with tensors that are `to` of these."""
    return {name: to(x) if isinstance(x, Tensor) else x for name, x in given.items()}


def pools(given: Given) -> dict[str, Tensor]:
    """The states of all sequences."""
    return {name: given[name] for name in ("states", "conv_states") if name in given}


def check_token_by_token(run: Run, given: Given) -> None:
    """A step of drafts of one sequence is as many steps of one token, bit for bit, and leaves the same states."""
    at_once, one_by_one = copied(given), copied(given)
    expected, found = run(**at_once), []
    for t in range(len(expected)):
        step = {"runs": torch.tensor([[t, 1]], dtype=torch.int32), "count": one_by_one["count"] + t}
        found.append(run(**{**one_by_one, **step})[t])
    kit.assert_equal(torch.stack(found), expected)
    for name, pool in pools(one_by_one).items():
        kit.assert_equal(pool, at_once[name])


def check_alone(run: Run, given: Given) -> None:
    """A sequence doesn't depend on the others."""
    expected = run(**copied(given))
    for i, (first, length) in enumerate(given["runs"].tolist()):
        alone = copied({**given, **{name: given[name][i : i + 1] for name in ("runs", "table", "count")}})
        kit.assert_equal(run(**alone)[first : first + length], expected[first : first + length])


def check_columns(run: Run, given: Given) -> None:
    """runs, table and count of two sequences may be columns of one tensor, and a count may be that of both."""
    expected = run(**copied(given))
    control = torch.cat([given["runs"], given["count"][:, None], given["table"]], 1)
    columns = {"runs": control[:, :2], "count": control[:, 2], "table": control[:, 3:]}
    kit.assert_equal(run(**copied(given) | columns), expected)
    same = given["count"][:1].expand(2)
    assert same.stride() == (0,)
    kit.assert_equal(
        run(**given | {name: pool.clone() for name, pool in pools(given).items()} | {"count": same}), expected
    )
