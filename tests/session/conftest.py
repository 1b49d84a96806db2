"""Fixtures of the sessions tests: those of the patch."""

from tests.hf.conftest import _one_thread, pair, quiet  # noqa: F401
