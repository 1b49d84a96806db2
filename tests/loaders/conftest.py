"""Fixtures of the loaders' tests. Models are tiny: more threads than one only cost time."""

from tests.patch.conftest import _one_thread  # noqa: F401
