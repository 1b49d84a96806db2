"""Fixtures of the loaders' tests. Models are tiny: more threads than one only cost time."""

from tests.hf.conftest import _one_thread  # noqa: F401
