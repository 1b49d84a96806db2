"""Fixtures of the sessions tests: those of the patch."""

from tests.patch.conftest import _one_thread, pair, quiet  # noqa: F401
