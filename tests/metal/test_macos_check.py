"""`make check-macos` can fail: one mistake of each kind is reported. Needs what that command installs and downloads, so
a fresh clone skips these tests until it has run: as its last step, and before the other tests in CI."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

MACOS = Path(__file__).parent / "macos"
sys.path.insert(0, str(MACOS))
import check  # noqa: E402
import llvm  # noqa: E402
import wheels  # noqa: E402

OLDEST, NEWEST = "2.11", "2.15"
STUB = Path(__file__).parent / "include" / "Metal" / "Metal.h"


@pytest.fixture(autouse=True)
def _possible() -> None:
    reason = llvm.unavailable()
    if not reason and not (wheels.there(OLDEST) and wheels.there(NEWEST)):
        reason = f"torch {OLDEST} and {NEWEST} for macOS have not been downloaded"
    if reason:
        pytest.skip(f"run `make check-macos` first: {reason}")


def checked(tmp_path: Path, text: str, minor: str = OLDEST) -> int:
    """Checks an extension of one file of Objective-C++."""
    metal = tmp_path / "csrc" / "metal"
    metal.mkdir(parents=True)
    (metal / "probe.mm").write_text(text)
    place = tmp_path / "objects"
    return check.check(minor, tmp_path / "csrc", place)


def on_device(statement: str) -> str:
    head = "void probe(id<MTLDevice> device)"
    return f"#import <Metal/Metal.h>\n{head};\n{head} {{ (void)device; {statement} }}\n"


SAFE_MATH = "[[[[MTLCompileOptions alloc] init] autorelease] setMathMode:MTLMathModeSafe];"
COMMIT = """#include <ATen/mps/MPSStream.h>
void commit();
void commit() { at::mps::getCurrentMPSStream()->synchronize(at::mps::SyncType::COMMIT); }
"""


def test_what_is_right_passes(tmp_path: Path) -> None:
    text = on_device("if (@available(macOS 15.0, *)) " + SAFE_MATH + " [device name];")
    assert checked(tmp_path, text + COMMIT) == 1


MISTAKES = {
    "a selector that does not exist": ('[device newLibraryWithText:@""];', "newLibraryWithText:"),
    "a selector that is only named": ("(void)@selector(newLibraryWithText:);", "undeclared selector"),
    "an API newer than macOS 14": (SAFE_MATH, "only available on macOS 15.0"),
    "a constant newer than macOS 14": ("(void)MTLLanguageVersion3_2;", "only available on macOS 15.0"),
    "an argument of another type": ('[device supportsFamily:@"apple7"];', "cannot initialize a parameter"),
    "nil where Metal takes none": ("[device newLibraryWithSource:nil options:nil error:nullptr];", "non-null argument"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_with_metal(tmp_path: Path, mistake: str) -> None:
    statement, message = MISTAKES[mistake]
    with pytest.raises(check.Failure, match=message):
        checked(tmp_path, on_device(statement))


def test_a_symbol_that_no_torch_has(tmp_path: Path) -> None:
    text = (
        "namespace at::mps { int no_such_function(int); }\nint f();\nint f() { return at::mps::no_such_function(1); }\n"
    )
    with pytest.raises(check.Failure, match=r"not in this torch:\nat::mps::no_such_function\(int\)"):
        checked(tmp_path, text)


NEW = """#include <ATen/mps/MPSStream.h>
at::mps::MPSStream* probe();
at::mps::MPSStream* probe() { return at::mps::getStreamFromPool(); }
"""


def test_a_function_that_one_torch_lacks(tmp_path: Path) -> None:
    """Pools of streams came after 2.13."""
    with pytest.raises(check.Failure, match="getStreamFromPool"):
        checked(tmp_path / "oldest", NEW)
    assert checked(tmp_path / "newest", NEW, NEWEST) == 1


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (
            "setKernelBuffer:(id<MTLBuffer>)buffer offset",
            "setKernelBuffer:(id<MTLBuffer>)buffer place",
            "Buffer:place:",
        ),
        ("BOOL preserveInvariance", "BOOL preserveVariance", "MTLCompileOptions has no method preserveVariance"),
        ("MTLDataTypeBool = 53", "MTLDataTypeBool = 54", "MTLDataTypeBool is 53, not 54"),
    ],
)
def test_a_stub_that_is_not_metal(tmp_path: Path, right: str, wrong: str, message: str) -> None:
    text = STUB.read_text()
    assert text.count(right) == 1
    (tmp_path / "Metal.h").write_text(text.replace(right, wrong))
    with pytest.raises(check.Failure, match=message):
        check.check_names(tmp_path / "Metal.h")


def test_the_flags_are_those_of_setup() -> None:
    assert {"-fno-objc-arc", "-Werror=objc-method-access", "-Werror=unguarded-availability-new"} <= set(
        check.setup_flags()
    )
