"""The jobs, step by step on Linux: their shell text with stand-ins for Apple's tools, make, pip and doctor, their
conditions, outputs and artifacts as the service reads them. So a step that can't run is seen, and one that is skipped
in vain."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
JOBS = {(path.stem, name): job for path in WORKFLOWS for name, job in yaml.safe_load(path.read_text())["jobs"].items()}
MACOS, WHEELS = JOBS["ci", "macos"], JOBS["wheels", "macos-arm64"]
STEP_KEYS = {"name", "id", "if", "uses", "with", "run", "shell", "continue-on-error"}
JOB_KEYS = {"strategy", "runs-on", "timeout-minutes", "env", "steps", "needs", "if"}
RUNNERS = {"ubuntu-24.04", "macos-15", "macos-26"}  # the images that are kept up; macos-14's is not
XCODE = {"macos-15": ["3.1", "3.2"], "macos-26": ["3.1", "3.2", "4.0"]}  # levels of the language by default

SHADERS = {"linear.metal", "rms_norm.metal"}  # enough for a step; tests/metal/test_metallib.py has all

# What stands on the path for each program: a line in the log, then what the steps after it need.
LOGGED = 'echo "$(basename "$0") $*" >> "$FAKE_LOG"\nif [ -n "$FAKE_FAIL" ]; then case "$(basename "$0") $*" in ' + (
    "*$FAKE_FAIL*) exit 1 ;; esac; fi\n"
)
MAKE = f"""{LOGGED}mkdir -p .venv/bin build torch_foundry/_built/metal
cp "$FAKE_BIN/python-of-venv" .venv/bin/python
cp "$FAKE_BIN/torch-foundry" .venv/bin/torch-foundry
echo kernels > torch_foundry/_built/metal/kernels-3.1.metallib
echo "$FAKE_BUILT" > build/build.log
"""
PYTHON = f'{LOGGED}[ "$1" != -c ] || exec {sys.executable} "$@"\n'
SUDO = f'{LOGGED}[ "$1" != env ] || exec "$@"\n'
# The interpreter beside the checkout: pip makes a wheel or a package that says where it is, all else is done.
RUNNERS_PYTHON = f"""[ "$2" = pip ] || exec {sys.executable} "$@"
{LOGGED}case "$*" in
*"pip wheel "*) mkdir -p dist && echo wheel > dist/torch_foundry.whl ;;
*dist/*) test -s "$4" && mkdir -p "$FAKE_SITE/torch_foundry/core" "$FAKE_SITE/metal" && cd "$FAKE_SITE"
  echo "import pathlib; BUILT = pathlib.Path(\'$FAKE_SITE\')" > torch_foundry/core/extension.py
  touch torch_foundry/__init__.py; printf "$FAKE_WHEEL" > metal/kernels-3.1.metallib ;;
esac
"""
SEEDED = ("fail", "bad", "built", "wheel")
DOCTOR = f'{LOGGED}for last; do :; done\necho report > "$last"\n'
TORCH = """class mps:
    is_available = staticmethod(lambda: bool({gpu!r}))
    get_name = staticmethod(lambda: {gpu!r})
class backends:
    mps = mps
"""


@dataclass
class Run:
    """What came of a job: by step, "success", "failure" or "skipped"; the commands that ran; the files kept of it."""

    outcomes: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    good: bool = True
    log: str = ""
    kept: set[str] = field(default_factory=set)

    def value(self, expression: Any, matrix: Mapping[str, str]) -> Any:
        """An expression of the service's language, as far as the workflow uses it."""
        text = re.sub(r"^\$\{\{(.*)\}\}$", r"\1", str(expression).strip()).strip()
        status = re.search(r"\b(always|cancelled|success|failure)\(\)", text)
        text = re.sub(r"matrix\.(\w+)", lambda m: repr(matrix.get(m[1], "")), text)
        text = re.sub(r"steps\.(\w+)\.outputs\.(\w+)", lambda m: repr(self.outputs.get(m[1], {}).get(m[2], "")), text)
        text = re.sub(r"steps\.(\w+)\.outcome", lambda m: repr(self.outcomes[m[1]]), text)
        text = text.replace("always()", "True").replace("!cancelled()", "True").replace("&&", " and ")
        found = eval(text.replace("true", "True") if text in ("true", "false") else text, {}, {})
        return found if status else (self.good and found)


def play(place: Path, matrix: dict[str, str], gpu: str = "", *, job: dict[str, Any] = MACOS, **seeded: str) -> Run:
    """Runs the job's steps as bash does there. seeded: `fail`, part of a command that fails; `bad`, a shader that does;
    `built`, what the build said; `wheel`, what the wheel has of kernels."""
    fail, bad, built, wheel = (seeded.get(name, "x" if name == "wheel" else "") for name in SEEDED)
    assert set(seeded) <= set(SEEDED)
    for folder in ("torch_foundry", "shaders"):
        others = {path.name for path in (ROOT / "shaders").rglob("*.metal")} - SHADERS
        ignored = shutil.ignore_patterns("_built", "demo_model", "*.so", "__pycache__", *others)
        shutil.copytree(ROOT / folder, place / folder, ignore=ignored)
    for folder in ("bin", ".ci", "temp"):
        (place / folder).mkdir()
    levels = XCODE[matrix.get("runner", "macos-15")] if matrix.get("tools") != "command-line-tools" else []
    programs = dict.fromkeys(("xcodebuild", "../.ci/run"), LOGGED) | {"sudo": SUDO, "torch-foundry": DOCTOR}
    programs |= {"make": MAKE, "python-of-venv": PYTHON, "python": RUNNERS_PYTHON}
    for name, text in programs.items():
        (place / "bin" / name).write_text(f"#!/bin/sh\n{text}")
        (place / "bin" / name).chmod(0o755)
    (place / "bin" / "xcrun").symlink_to(ROOT / "tests" / "metal" / "fake_xcrun.py")
    (place / "torch.py").write_text(TORCH.format(gpu=gpu))
    fake = {"FAKE_LOG": str(place / "log"), "FAKE_FAIL": fail, "FAKE_BIN": str(place / "bin"), "FAKE_BUILT": built}
    fake["FAKE_XCRUN"] = json.dumps({"levels": levels, "bad": bad, "log": str(place / "xcrun.log")})
    fake |= {"FAKE_SITE": str(place / "site"), "FAKE_WHEEL": wheel, "GITHUB_WORKSPACE": str(place)}
    fake |= {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "RUNNER_TEMP": str(place / "temp")}
    fake["PYTHONPATH"] = f"{place}" if job is MACOS else f"{place / 'site'}"
    run = Run()
    for step in job["steps"]:
        name = step.get("id", step.get("name", step.get("uses", step.get("run", "")).split("@")[0]))
        if not run.value(step.get("if", True), matrix):
            run.outcomes[name] = "skipped"
            continue
        if "uses" in step:
            if "upload-artifact" in name:
                for pattern in step["with"]["path"].split():
                    run.kept |= {str(path.relative_to(place)) for path in place.glob(pattern)}
            run.outcomes[name] = "success"
            continue
        text = re.sub(r"\$\{\{ (.*?) \}\}", lambda m: str(run.value(f"always() and {m[1]}", matrix)), step["run"])
        shell = ["bash", "-eo", "pipefail", "-c"] if step.get("shell") == "bash" else ["bash", "-e", "-c"]
        output = place / "output"
        output.write_text("")
        environment = os.environ | job.get("env", {}) | fake | {"GITHUB_OUTPUT": str(output)}
        result = subprocess.run([*shell, text], cwd=place, env=environment, capture_output=True, text=True)
        run.log += result.stdout + result.stderr
        run.outcomes[name] = "failure" if result.returncode else "success"
        run.outputs[name] = dict(line.split("=", 1) for line in output.read_text().splitlines())
        tolerated = "continue-on-error" in step and run.value(
            f"always() and ({step['continue-on-error'][3:-2]})", matrix
        )
        run.good = run.good and (not result.returncode or bool(tolerated))
    run.log += (place / "log").read_text()
    return run


def matrix(runner: str, tools: str) -> dict[str, str]:
    """A combination of the job's matrix."""
    given = MACOS["strategy"]["matrix"]
    assert runner in given["runner"] and tools in given["tools"]
    return {"runner": runner, "tools": tools} | next(i for i in given["include"] if i["runner"] == runner)


VIRTUAL = "Apple Paravirtual device"


@pytest.mark.parametrize("runner", ["macos-15", "macos-26"])
def test_all_steps_run(runner: str, tmp_path: Path) -> None:
    run = play(tmp_path, matrix(runner, "xcode"), gpu=VIRTUAL)
    skipped = {name for name, outcome in run.outcomes.items() if outcome == "skipped"}
    extra = set() if runner == "macos-26" else {"the Metal compiler, which Xcode 26 has apart"}
    assert run.good and skipped == {"command line tools only"} | extra, run.log
    assert run.outputs["gpu"] == {"there": "true", "virtual": "true"}
    made = len(SHADERS) * len(XCODE[runner])
    assert f"{made} of {made} compile" in run.log
    assert "doctor --device cpu --quick" in run.log and "doctor --device mps --quick" in run.log
    assert run.kept == {
        *("doctor-cpu.json", "doctor-mps.json", "metal-compiler.log", "torch_foundry/_built/metal"),
        "build/build.log",
    }
    assert (tmp_path / "metal-compiler.log").read_text()


def test_without_xcode_and_without_a_gpu(tmp_path: Path) -> None:
    run = play(tmp_path, matrix("macos-15", "command-line-tools"))
    assert run.good and "xcode-select --switch" in run.log, run.log
    assert run.outcomes["doctor on the CPU"] == "success" and run.outcomes["doctor on the GPU"] == "skipped"


FAULTS: dict[str, tuple[dict[str, str], str]] = {
    "a shader that Apple refuses": ({"bad": "linear.metal"}, "Apple's compiler takes every shader"),
    "a kernel that the build leaves out": (
        {"built": "not compiled ahead of time: linear.metal"},
        "the build has made the common kernels",
    ),
    "doctor on the CPU": ({"fail": "--device cpu"}, "doctor on the CPU"),
    "doctor on a real GPU": ({"fail": "--device mps", "gpu": "Apple M4"}, "doctor on the GPU"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_fails_the_job_and_no_other_step(fault: str, tmp_path: Path) -> None:
    seeded, where = dict(FAULTS[fault][0]), FAULTS[fault][1]
    gpu = seeded.pop("gpu", VIRTUAL)
    run = play(tmp_path, matrix("macos-26", "xcode"), gpu, **seeded)
    assert not run.good
    assert {name for name, outcome in run.outcomes.items() if outcome == "failure"} == {where}, run.log
    assert [name for name, outcome in run.outcomes.items() if outcome == "skipped"] == ["command line tools only"]


def test_a_virtual_gpu_only_reports(tmp_path: Path) -> None:
    run = play(tmp_path, matrix("macos-26", "xcode"), gpu=VIRTUAL, fail="--device mps")
    assert run.good and run.outcomes["doctor on the GPU"] == "failure", run.log
    assert run.outcomes["the suite of the ops on the GPU"] == "success"


def test_without_a_build_the_shaders_are_still_compiled(tmp_path: Path) -> None:
    run = play(tmp_path, matrix("macos-26", "xcode"), fail="make build")
    assert not run.good and run.outcomes["Apple's compiler takes every shader"] == "success", run.log
    assert run.outcomes["doctor on the CPU"] == "skipped" and run.outcomes["actions/upload-artifact"] == "success"


def test_a_metal_compiler_that_can_not_be_had(tmp_path: Path) -> None:
    """The download of Xcode 26's: what needs no compiler is looked at all the same."""
    run = play(tmp_path, matrix("macos-26", "xcode"), gpu=VIRTUAL, fail="xcodebuild -download")
    assert not run.good and run.outcomes["doctor on the GPU"] == run.outcomes["build"] == "success", run.log


def test_a_wheel_is_tried_away_from_the_checkout(tmp_path: Path) -> None:
    run = play(tmp_path, {"torch": "2.13"}, job=WHEELS)
    assert run.good and set(run.outcomes.values()) == {"success"}, run.log
    assert "install torch==2.13.* setuptools" in run.log and "doctor --device cpu --quick" in run.log
    assert run.kept == {"dist/torch_foundry.whl", "doctor-cpu.json"}


@pytest.mark.parametrize("fault", [{"wheel": ""}, {"fail": "doctor"}, {"fail": "pip wheel"}], ids=str)
def test_a_wheel_that_does_not_work(fault: dict[str, str], tmp_path: Path) -> None:
    """Without kernels, or with a doctor that finds something, it is kept to be looked at; the job fails."""
    run = play(tmp_path, {"torch": "2.11"}, job=WHEELS, **fault)
    assert not run.good and ("dist/torch_foundry.whl" in run.kept) == (fault.get("fail") != "pip wheel"), run.log


@pytest.mark.parametrize("job", [key for key in JOBS if "linux" in key], ids="-".join)
def test_what_linux_runs(job: tuple[str, str], tmp_path: Path) -> None:
    """Every step reaches its program, also if the first of them fails."""
    run = play(tmp_path, {}, job=JOBS[job])
    assert run.good and set(run.outcomes.values()) == {"success"}, run.log
    named = [step["run"].split('PATH=$PATH" ')[1] for step in JOBS[job]["steps"] if "run" in step]
    ran = [line.strip() for line in run.log.splitlines()]
    assert {command.removeprefix(".ci/") for command in named} <= set(ran), run.log
    again = tmp_path / "again"
    again.mkdir()
    run = play(again, {}, job=JOBS[job], fail=named[0])
    assert not run.good and [*run.outcomes.values()].count("failure") == 1 and "skipped" not in run.outcomes.values()


def test_what_the_macs_compiled_runs_on_linux() -> None:
    """Also if a step of theirs failed; what has no compiler is left alone."""
    job = JOBS["ci", "linux-metallib"]
    (sent,) = (step["with"] for step in MACOS["steps"] if "upload-artifact" in step.get("uses", ""))
    (got,) = (step["with"] for step in job["steps"] if "download-artifact" in step.get("uses", ""))
    given = MACOS["strategy"]["matrix"]
    names = {
        tools: {f"mac-{runner}-{tools}" for runner in given["runner"]} for tools in given["tools"]
    }  # as `name` has it
    assert sent["name"] == "mac-${{ matrix.runner }}-${{ matrix.tools }}"
    assert set(fnmatch.filter(set.union(*names.values()), got["pattern"])) == names["xcode"]
    made = next(step["run"] for step in MACOS["steps"] if "tests.air.record" in step.get("run", "")).split()[-1]
    assert {made, "torch_foundry/_built/metal"} <= set(sent["path"].split())
    assert job["needs"] == "macos" and job["if"] == "${{ !cancelled() }}"
    assert job["steps"][-1]["run"].endswith(f"METALLIBS={got['path']}")


# ------------------------------------------------------------------------------------------------- what linters read

MISTAKES = {
    "a misspelt key": ("continue-on-error:", "continue-on-errors:"),
    "no such permission": ("contents: read", "contents: reed"),
    "more rights than needed": ("contents: read", "contents: write"),
    "a title that anybody can choose": ("make build", "echo ${{ github.event.pull_request.title }}"),
    "an action of any day": ("actions/setup-python@v6.0.0", "someone/setup-python@main"),
    "credentials that stay": ("persist-credentials: false", "fetch-depth: 1"),
}


@pytest.mark.parametrize("mistake", ["", *MISTAKES])
def test_make_lint_sees_mistakes(mistake: str, tmp_path: Path) -> None:
    """The commands of `make lint`, on a workflow with one mistake."""
    shutil.copytree(ROOT / ".github", tmp_path / ".github")
    right, wrong = MISTAKES.get(mistake, ("", ""))
    path = tmp_path / ".github/workflows/ci.yml"
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong) if mistake else text)
    recipe = subprocess.run(
        ["make", "-n", "lint", f"BIN={Path(sys.executable).parent}"], cwd=ROOT, capture_output=True, text=True
    ).stdout
    commands = [line for line in recipe.splitlines() if ".github" in line]
    done = [subprocess.run(["bash", "-c", line], cwd=tmp_path).returncode for line in commands]
    assert len(done) == 3 and 127 not in done and any(done) == bool(mistake)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_keys_runners_and_references(path: Path) -> None:
    """A misspelt key is passed over there, and a step that does not exist is an empty text."""
    jobs = yaml.safe_load(path.read_text())["jobs"]
    for job in jobs.values():
        assert {job.get("needs")} <= {None, *jobs}
        given = job.get("strategy", {}).get("matrix", {})
        assert set(job) <= JOB_KEYS and set(job.get("strategy", {})) <= {"fail-fast", "matrix"}
        labels = given["runner"] if job["runs-on"] == "${{ matrix.runner }}" else [job["runs-on"]]
        assert set(labels) <= RUNNERS
        known = set(given) | {key for line in given.get("include", []) for key in line}
        ids: list[str] = []
        for step in job["steps"]:
            assert set(step) <= STEP_KEYS, step
            text = yaml.safe_dump(step, width=10**6)
            assert set(re.findall(r"\bmatrix\.(\w+)", text)) <= known
            assert set(re.findall(r"\bsteps\.(\w+)\.", text)) <= set(ids), step
            ids += [step["id"]] if "id" in step else []
