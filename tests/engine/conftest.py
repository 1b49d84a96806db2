"""Fixtures of the patch tests."""

from tests.patch.conftest import _one_thread, pair, quiet  # noqa: F401
