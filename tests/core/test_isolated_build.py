"""What setup.py does about torch where pip builds in isolation: the real pip, on a project whose build only tells."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Stands for setup.py: what it imports, as it does, and the processes that it starts.
BACKEND = """
import json, pathlib, subprocess, sys
from torch_foundry.core import support

def get_requires_for_build_wheel(settings=None):
    return ["torch"]

def build_wheel(directory, settings=None, metadata=None):
    pathlib.Path({root!r}, "child.py").write_text("import sys, torch; print(torch.__version__, sys.argv[1:])")
    support.use_installed_torch()
    import torch
    child = subprocess.run(support.module_command("child", pathlib.Path({root!r})), capture_output=True, text=True)
    told = [torch.__version__, child.stdout.strip() or child.stderr, support.installed_torch()]
    pathlib.Path({root!r}, "told.json").write_text(json.dumps(told))
    sys.exit(1)
"""


def make_torch(place: Path, version: str) -> None:
    """A package of that name and version in `place`."""
    (place / "torch").mkdir(parents=True)
    (place / "torch" / "version.py").write_text(f"__version__ = '{version}'\n")
    (place / "torch" / "__init__.py").write_text("from torch.version import __version__\n")


def make_wheel(place: Path, version: str) -> None:
    """A wheel of such a package."""
    make_torch(place, version)
    info = f"torch-{version}.dist-info"
    with zipfile.ZipFile(place / f"torch-{version}-py3-none-any.whl", "w") as z:
        for name in ("version.py", "__init__.py"):
            z.write(place / "torch" / name, f"torch/{name}")
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")


def told_by_pip(tmp_path: Path, python: Path) -> list[str | None]:
    """(torch of the build, torch of its child, folder of the installed torch), as the pip of `python` ran the build.

    The build asks for torch, so that its own environment has one as well.
    """
    project, packages = tmp_path / "project", tmp_path / "packages"
    shutil.copytree(
        ROOT / "torch_foundry", project / "torch_foundry", ignore=shutil.ignore_patterns("_*", "demo_model")
    )
    (project / "torch_foundry" / "__init__.py").touch()
    backend = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (project / "pyproject.toml").write_text(f'{backend}[project]\nname = "probe"\nversion = "1"\n')
    (project / "backend.py").write_text(BACKEND.format(root=str(project)))
    make_wheel(packages, "9.9.0")
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "wheel",
        "--no-index",
        "--no-deps",
        "--no-cache-dir",
        "-q",
    ]
    command += ["--find-links", str(packages), "--wheel-dir", str(tmp_path / "out"), str(project)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PIP_") and k != "PYTHONPATH"}
    environment["PIP_CONFIG_FILE"] = os.devnull
    result = subprocess.run(command, capture_output=True, text=True, env=environment)
    told = project / "told.json"
    assert told.is_file(), result.stdout + result.stderr
    return json.loads(told.read_text())  # type: ignore[no-any-return]


@pytest.mark.parametrize("installed, used", [("2.13.1", "2.13.1"), ("2.9.0", "9.9.0"), (None, "9.9.0")])
def test_pip_builds_with_the_installed_torch(installed: str | None, used: str, tmp_path: Path) -> None:
    """And so do the processes that the build starts, though pip hides the installed packages from each of them."""
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    if installed:
        make_torch(site, installed)
    told = told_by_pip(tmp_path, tmp_path / "venv" / "bin" / "python")
    assert told == [used, f"{used} []", str(site) if installed == used else None]


def test_no_torch_is_fetched_where_one_is_installed(tmp_path: Path) -> None:
    """pyproject.toml's list has none, and the build asks for one only where there is none that fits."""
    for installed, asked in (("2.13.1", []), ("2.10.0", ["torch>=2.11"])):
        make_torch(tmp_path / installed, installed)
        code = (
            f"import sysconfig; sysconfig.get_path = lambda name: {str(tmp_path / installed)!r}\n"
            "import build_backend; print([getattr(build_backend, f'get_requires_for_build_{kind}')()"
            " for kind in ('wheel', 'sdist', 'editable')])"
        )
        result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
        assert result.stdout.strip() == str([asked] * 3), result.stderr
    assert "torch" not in next(line for line in (ROOT / "pyproject.toml").open() if line.startswith("requires ="))
