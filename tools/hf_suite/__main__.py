"""Runs transformers' own tests on stock and on patched models: a test that passes on the first alone is a defect.

    python -m tools.hf_suite [--families llama qwen3_moe] [--update]

Without more, the tests are those that all models share, from transformers' source distribution, on a tiny model of each
family. HF_TESTS=/path names a checkout of transformers, near the installed version: then the tests are those of the
families' own folders and of `generate()`, which no distribution has.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import transformers

from tests.hf import tiny_cases, tiny_models

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build/hf_suite"
RECORD = Path(__file__).parent / "outcomes.json"  # of the tests that all models share
FOLDERS = Path(__file__).parent / "folders.json"  # of those of a checkout
DOCUMENT = ROOT / "docs/hf_tests.md"
WRAPPERS = ("qwen2_vl",)  # of whose folders all tests are run from a checkout, also those that all models share
ENCODERS = ("bert",)
GROUP = 8  # families that one process tests
# What stays out: compilers, exporters and kernels that are not ours, what needs several devices, accelerate or files of
# others; which of torch's attention kernels runs, float16 beside bfloat16 (`eager_matches_sdpa`); that tests of a model
# which can generate have those of `generate()`
LEFT_OUT = ("compil", "_export", "flash_att", "on_flash", "flex_att", "deepspeed", "offload", "multi_gpu", "pipeline",
            "mixin_inheritance", "sdpa_kernels", "fp16_pad", "training_overfit")  # fmt: skip
# What patched models may fail, by family and test, with the reason
EXCUSED = {
    "afmoe": {
        "test_batching_equivalence": "routers of new models are zeros, so all experts are worth the same: few tokens "
        "are given the first ones, many those that torch.topk takes"
    },
    "gpt_oss": {
        "test_load_contiguous_weights": "experts are laid out as kernels read them: parameters keep shapes and values, "
        "not strides"
    },
}
Row = dict[str, Any]  # how many tests of a family came to what
Outcome = dict[str, list[str]]  # of each test: passed, failed or skipped, and the last line of the error


def families(checkout: Path | None) -> list[str]:
    """What there are tests for: our tiny models, or folders of `checkout`."""
    ours = [*tiny_cases.ALL_FAMILIES, *tiny_cases.KIN]
    if checkout is None:
        return ours
    configs = [getattr(transformers, tiny_models.case(family).config, None) for family in ours]
    folders = {config.__module__.split(".")[2] for config in configs if config} | {*WRAPPERS, *ENCODERS}
    return sorted(folder for folder in folders if _test_file(checkout, folder).exists())


def _test_file(checkout: Path, folder: str) -> Path:
    return checkout / f"tests/models/{folder}/test_modeling_{folder}.py"


def source_distribution() -> Path:
    """The folder of transformers' source distribution, of the installed version; pip fetches it if need be."""
    name = f"transformers-{transformers.__version__}"
    if not (BUILD / name / "tests/test_modeling_common.py").exists():
        BUILD.mkdir(parents=True, exist_ok=True)
        what = ["--no-deps", "--no-binary", "transformers", "--no-build-isolation", "--dest", str(BUILD)]
        fetch = [sys.executable, "-m", "pip", "download", "-q", *what, f"transformers=={transformers.__version__}"]
        if subprocess.run(fetch).returncode:
            raise SystemExit(f"pip can't fetch the source distribution of {name}; HF_TESTS=/path names a checkout")
        with tarfile.open(BUILD / f"{name}.tar.gz") as archive:
            archive.extractall(BUILD, filter="data")
    return BUILD / name


def run(names: list[str], checkout: Path | None, patched: bool) -> dict[str, Outcome]:
    """The outcomes of some families' tests, by family and test. RuntimeError: pytest can't run them."""
    folder = BUILD / ("checkout" if checkout else "common")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{names[0]}-{'patched' if patched else 'stock'}.json"
    path.unlink(missing_ok=True)
    set_ = {"HF_SUITE_OUTCOMES": str(path), "HF_SUITE_FAMILIES": " ".join(names), "HF_SUITE_PATCH": "1" * patched}
    set_["HF_HUB_OFFLINE"] = "1"  # or counts depend on what the Hub answers, and tests wait for it for minutes
    if checkout is None:
        set_["HF_SUITE_SDIST"] = str(source_distribution())
    else:
        set_["HF_SUITE_OWN"] = " ".join(name for name in names if name not in (*WRAPPERS, *ENCODERS))
    common = Path(__file__).parent / "common_tests.py"
    tests = [str(_test_file(checkout, name)) for name in names] if checkout else [str(common)]
    options = ["-q", "-W", "ignore", "-p", "tools.hf_suite.plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-k", " and ".join(f"not {part}" for part in LEFT_OUT), *tests],
        cwd=checkout or ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **set_},
        capture_output=True,
        text=True,
    )
    path.with_suffix(".log").write_text(done.stdout + done.stderr)
    outcomes: Outcome = json.loads(path.read_text()) if path.exists() else {}
    of: dict[str, Outcome] = {name: {} for name in names}
    for test, outcome in outcomes.items():
        file, _, function = test.partition("::")
        family = Path(file).parent.name if checkout else function.partition("::")[0].removeprefix("Test_")
        of[family][function] = outcome
    if empty := [name for name, found in of.items() if not found]:
        raise RuntimeError(f"no test ran of {', '.join(empty)}; {path.with_suffix('.log')} says why")
    return of


def defects(stock: Outcome, patched: Outcome) -> dict[str, str]:
    """Tests that pass on stock models alone, with what the patched one came to.

    A test's parts stop at the first error of the test itself, so parts that patched models don't have are no defects.
    """
    return {
        name: " ".join(patched[name])
        for name, outcome in stock.items()
        if outcome[0] == "passed" and name in patched and patched[name][0] != "passed"
    }


def excuse(family: str, test: str) -> str | None:
    """Why patched models of `family` may fail `test`, one of its tests or a part of one; None: they may not."""
    name = test.partition("::")[2].partition(" ")[0]
    return EXCUSED.get(family, {}).get(name)


def version_of(checkout: Path) -> str:
    """The version of transformers that a checkout is of; "unknown": it doesn't say."""
    path = checkout / "src/transformers/__init__.py"
    found = re.search(r'^__version__ = "(.+)"', path.read_text() if path.exists() else "", re.MULTILINE)
    return found[1] if found else "unknown"


def _table(rows: dict[str, Row], first: str) -> list[str]:
    head = (first, "pass on stock", "on patched", "excused", "skipped", "fail on both")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, row in sorted(rows.items()):
        counts = (row["stock"], row["patched"], row.get("excused", 0), row["skipped"], row["failed"])
        lines.append(f"| `{name}` | {' | '.join(map(str, counts))} |")
    return lines


def _total(rows: dict[str, Row]) -> str:
    stock, patched = (sum(row[of] for row in rows.values()) for of in ("stock", "patched"))
    return f"{stock} tests and parts of tests pass on stock models, {patched} on patched ones."


def document(record: dict[str, Row], folders: dict[str, Row]) -> str:
    """docs/hf_tests.md."""
    excuses = [f"- `{name}`, `{test}`: {why}." for name, of in EXCUSED.items() for test, why in of.items()]
    lines = [
        "# transformers' tests on patched models",
        "",
        "`make test-hf` runs the tests that all models of transformers share (`ModelTesterMixin`) on a tiny model of",
        "each family, stock and patched: what passes on the first has to pass on the second. Written by",
        "`make test-hf UPDATE=1`. How it is done: [testing.md](testing.md#transformers-own-tests).",
        "",
        f"{len(record)} families; {_total(record)}",
        "",
        *_table(record, "family"),
        "",
        "Those that fail on both: what a folder's own tests define anew for its models, or leave out.",
        "",
        "## generate() and the models' own folders",
        "`make test-hf HF_TESTS=/path UPDATE=1`, with a checkout of transformers: the tests of `generate()`",
        "(`GenerationTesterMixin`) and what the folder adds or defines anew, on its own small models, some of which",
        f"take images. Versions of the checkouts: {', '.join(sorted({row['of'] for row in folders.values()}))}.",
        "",
        f"{len(folders)} folders; {_total(folders)}",
        "",
        *_table(folders, "folder"),
        "",
        "Those that fail on both want what the installed version has otherwise than the checkout, such as a cache for",
        "layers that share the keys of others, as Gemma 3n's and Gemma 4's, or a tokenizer from the Hub. Mistral 4's",
        "folder skips all of its tests.",
        "",
        "## Excused",
        "What patched models may fail, and why:",
        *(line for each in excuses for line in textwrap.wrap(each, 120, subsequent_indent="  ")),
    ]
    return "\n".join(lines) + "\n"


def main(args: list[str] | None = None) -> int:
    """Run, print defects, and return how many families have any."""
    checkout = Path(os.environ["HF_TESTS"]).resolve() if os.environ.get("HF_TESTS") else None
    if checkout and not (checkout / "tests/test_modeling_common.py").exists():
        raise SystemExit(
            f"HF_TESTS={checkout}: expected a checkout of transformers, with tests/test_modeling_common.py"
        )
    parser = argparse.ArgumentParser(prog="python -m tools.hf_suite", description=__doc__.partition("\n")[0])
    known = families(checkout)
    parser.add_argument("--families", nargs="*", metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--update", action="store_true", help="write the counts to docs/hf_tests.md")
    given = parser.parse_args(args)
    if unknown := set(given.families or ()) - set(known):
        parser.error(f"no tests of {', '.join(sorted(unknown))}; there are those of {', '.join(known)}")
    bad = 0
    chosen = given.families or known
    for group in (chosen[i : i + GROUP] for i in range(0, len(chosen), GROUP)):
        stock, patched = (run(group, checkout, mode) for mode in (False, True))
        rows: dict[str, Row] = {}
        for family in group:
            of_stock, of_patched = (Counter(kind for kind, _ in of[family].values()) for of in (stock, patched))
            print(f"{family}: {of_stock['passed']} pass on stock, {of_patched['passed']} on patched models", flush=True)
            worse = defects(stock[family], patched[family])
            excused = {name: why for name in worse if (why := excuse(family, name))}
            for name, why in worse.items():
                print(f"  {name}: {why}; excused: {excused.get(name, 'no')}", flush=True)
            bad += worse.keys() != excused.keys()
            counts = {"stock": of_stock["passed"], "patched": of_patched["passed"], "excused": len(excused)}
            row = {**counts, "skipped": of_stock["skipped"], "failed": of_stock["failed"]}
            if of_stock["passed"]:  # of some folders all tests want files of others
                rows[family] = row | ({"of": version_of(checkout)} if checkout else {})
        if given.update:
            path = FOLDERS if checkout else RECORD
            record = {**json.loads(path.read_text()), **rows}
            path.write_text(json.dumps(dict(sorted(record.items())), indent=1) + "\n")
            DOCUMENT.write_text(document(*(json.loads(each.read_text()) for each in (RECORD, FOLDERS))))
    return bad


if __name__ == "__main__":
    raise SystemExit(main())
