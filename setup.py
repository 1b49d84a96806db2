"""Builds the extension `torch_foundry/_C` and what the host executor needs beside it (`torch_foundry/_built`)."""

import contextlib
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent.resolve()
sys.path.insert(0, str(ROOT))
from torch_foundry.core import environment, sources, support  # noqa: E402  (needs the path above; none imports torch)

support.use_installed_torch()
import torch  # noqa: E402
from torch.utils.cpp_extension import BuildExtension, CppExtension  # noqa: E402

from torch_foundry.core import devices  # noqa: E402

EXECUTORS = [device for device in devices.DEVICES.values() if device.builds()]
PATTERNS = ["core/*.cpp", "ops/*.cpp", "loaders/*.cpp", *(pattern for each in EXECUTORS for pattern in each.built_from)]
INCLUDE_DIRS = [str(ROOT / "csrc"), str(ROOT / "shaders"), *(d for each in EXECUTORS for d in each.include_dirs())]

# Without contraction no processor fuses a product with a sum: packed weights have the same bytes everywhere.
# Python's own flags have -g, and debug information takes a third of the compiler's time.
CXX_FLAGS = ["-std=c++20", "-O2", "-g0", "-Wall", "-Wno-unknown-pragmas", "-Wno-sign-compare", "-ffp-contract=off"]
METAL_FLAGS = []
# Under a sanitizer it is another build, below build/ (`make asan`, `make tsan`). A finding of UBSan ends the
# process, as one of ASan does; `vptr` needs type information that torch's libraries keep to themselves.
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=undefined"],
    "thread": ["-fsanitize=thread"],
}
if platform.system() == "Darwin":  # manual retain and release, as in torch's own MPS sources
    METAL_FLAGS = ["-fno-objc-arc", "-Werror=objc-method-access", "-Werror=unguarded-availability-new"]
    target = os.environ.setdefault("MACOSX_DEPLOYMENT_TARGET", "14.0")
    if "ARCHFLAGS" not in os.environ:  # a Python for both of Apple's processors would have all compiled twice
        os.environ["ARCHFLAGS"] = f"-arch {platform.machine()}"
        os.environ.setdefault("_PYTHON_HOST_PLATFORM", f"macosx-{target}-{platform.machine()}")  # the wheel's name


def mac_problem() -> str | None:
    """Why the extension can't be built on this Mac. None if it can, GPU or not, and elsewhere."""
    known = replace(devices.METAL.facts(), available=True)
    problem = devices.METAL.problem(known.built, known) if known.system == "Darwin" else None
    # without the advice to use the CPU until then: nothing is built
    return problem and re.sub(r"[:;] (until then )?the kernels run on the CPU.*", "", problem)


if problem := mac_problem():
    sys.exit(f"torch_foundry can't be built here: {problem}")
if devices.CUDA.built() and devices.CUDA not in EXECUTORS:
    print(f"torch_foundry is built without the CUDA executor: {devices.CUDA.own_problem()}", file=sys.stderr)
LINK_FLAGS = {"Linux": ["-ldl"], "Darwin": ["-framework", "Metal", "-framework", "Foundation"]}
sanitizer = environment.SANITIZE.value()
SANITIZE_FLAGS = [*SANITIZERS[sanitizer], "-fno-omit-frame-pointer", "-g1"] if sanitizer else []


@contextlib.contextmanager
def plain_compiler() -> Iterator[None]:
    """CXX without ccache or sccache: torch takes it for one word, and puts those it finds before it by itself."""
    given = environment.CXX.given() or ""
    if given.startswith(("ccache ", "sccache ")):
        os.environ["CXX"] = given.split(maxsplit=1)[1]
    try:
        yield
    finally:
        if given:
            os.environ["CXX"] = given


class Build(BuildExtension):
    """Extension, then the host tree, then the kernels that most models use: for Metal, or the host's side by side."""

    def run(self) -> None:
        with plain_compiler():
            super().run()
        package = ROOT / "torch_foundry" if self.inplace else Path(self.build_lib).resolve() / "torch_foundry"
        sources.build_tree(ROOT, package / "_built")
        support.record_torch(package / "_built", torch.__version__)
        loaded = subprocess.run(support.module_command("torch_foundry.core.runtime", package.parent))
        if problem := support.load_problem(loaded.returncode, environment.CXX.given() or "c++"):
            sys.exit(f"torch_foundry can't be built here: {problem}")
        if platform.system() == "Darwin":  # without Apple's compiler it says so, and that is well too
            subprocess.run(support.module_command("torch_foundry.aot.metallib", package.parent), check=True)
        # a Mac runs them on the GPU, and compiles the host's when they are asked for
        by_default = "0" if platform.system() == "Darwin" else "1"
        if (environment.PREBUILD.value() or by_default) == "1":
            subprocess.run(support.module_command("torch_foundry.aot.prebuild", package.parent), check=True)


class SanitizedBuild(BuildExtension):
    """The extension alone, in a folder of its own below build/: the rest is the ordinary build's."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.build_lib, self.build_temp = f"build/{sanitizer}", f"build/{sanitizer}/objects"

    def run(self) -> None:
        if self.inplace:
            sys.exit(f"{environment.SANITIZE.name}={sanitizer}: build_ext without --inplace makes build/{sanitizer}")
        with plain_compiler():
            super().run()


extension = CppExtension(
    "torch_foundry._C",
    sorted(str(path.relative_to(ROOT)) for pattern in PATTERNS for path in ROOT.glob(f"csrc/{pattern}")),
    include_dirs=INCLUDE_DIRS,
    libraries=[library for each in EXECUTORS for library in each.libraries],
    extra_compile_args=[*CXX_FLAGS, *METAL_FLAGS, *SANITIZE_FLAGS],
    extra_link_args=[*LINK_FLAGS.get(platform.system(), []), *SANITIZE_FLAGS],
    py_limited_api=True,
)

setup(
    packages=find_packages(include=["torch_foundry", "torch_foundry.*"]),
    package_data={
        "torch_foundry": [
            "py.typed",
            "demo_model/*.json",
            "demo_model/*/*",
            "diagnostics/golden/*.safetensors",
            "msl/**/*.h",
        ]
    },
    # make has built in place already when it records the package
    ext_modules=[] if environment.SKIP_EXTENSION.on() else [extension],
    cmdclass={"build_ext": (SanitizedBuild if sanitizer else Build).with_options(use_ninja=True)},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
