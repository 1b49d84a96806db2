"""What a patched model remembers, shared by its swapped modules."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import Any


class FallbackWarning(UserWarning):
    """A patched module ran stock code; the text says why. Given once per model and reason."""


@dataclass
class ModelState:
    """One per patched model. Copies and pickles along with it."""

    enabled: bool = True  # False: every swapped module runs stock code (torch_foundry.compare)
    left: dict[str, str] = field(default_factory=dict)  # name of a module left alone -> why; filled by patch()
    quantized: str | None = None  # format of packed weights
    warned: set[str] = field(default_factory=set)


class Blocked(Exception):
    """Stock code has to run; the text is the reason."""


class Plan:
    """What one swapped module needs for its fused path (in subclasses), and what it did.

    A copy of the module gets a bare `Plan`, from which it makes its own.
    """

    __slots__ = ("fallbacks", "fused", "state")

    def __init__(self, state: ModelState) -> None:
        self.state = state
        self.fused = 0  # calls
        self.fallbacks: Counter[str] = Counter()  # reason -> calls

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return Plan(copy.deepcopy(self.state, memo))

    def __reduce__(self) -> Any:
        return Plan, (self.state,)

    def fell_back(self, kind: str, reason: str) -> None:
        """Count a call that ran stock code; the first one of its reason warns."""
        self.fallbacks[reason] += 1
        if reason not in self.state.warned:
            self.state.warned.add(reason)
            warnings.warn(
                f"{kind} runs stock code: {reason}. Said once; torch_foundry.report(model) has the counts.",
                FallbackWarning,
                stacklevel=4,
            )
