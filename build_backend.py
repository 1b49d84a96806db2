"""What pip calls to build: setuptools, but torch is fetched for the build only where no torch is installed that fits.

An isolated build that always asked for torch would fetch the newest, of some GB, and then set it aside: what is built
has to fit the installed one (`support.use_installed_torch`).
"""

from __future__ import annotations

from typing import Any

from setuptools.build_meta import *  # noqa: F403

from torch_foundry.core import support


def requirements(settings: Any = None) -> list[str]:
    """What the build needs beside pyproject.toml's list."""
    return [] if support.installed_torch() else [f"torch>={'.'.join(map(str, support.OLDEST_TORCH))}"]


get_requires_for_build_wheel = get_requires_for_build_editable = get_requires_for_build_sdist = requirements
