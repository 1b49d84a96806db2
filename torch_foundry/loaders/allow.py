"""Which faults of a file the caller accepts."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

TOLERABLE = {  # code -> what happens if it is allowed
    "TENSOR_EXTRA": "tensors that the model has no place for are left out",
    "TENSOR_MISSING": "parameters that the file lacks become zeros (norms: what a new model has)",
    "NONFINITE": "infinities and NaNs are loaded as they are",
    "VOCAB_MISSING": "a GGUF file without any vocabulary has no tokenizer: None",
}


class Allow:
    """Accepted faults, as "CODE" or "CODE:pattern". A shell pattern is matched with the tensor's name in the file, or
    with the parameter's name if it has none there. ValueError for a code that can't be accepted.
    """

    def __init__(self, faults: Iterable[str] = ()) -> None:
        if isinstance(faults, str):
            faults = (faults,)
        self._patterns = [(code, pattern or "*") for code, _, pattern in (fault.partition(":") for fault in faults)]
        for code, _ in self._patterns:
            if code not in TOLERABLE:
                raise ValueError(f"allow: expected some of {', '.join(TOLERABLE)}, got {code!r}")

    def __call__(self, code: str, name: str) -> bool:
        """Whether fault `code` of tensor `name` is accepted."""
        return any(code == known and fnmatchcase(name, pattern) for known, pattern in self._patterns)
