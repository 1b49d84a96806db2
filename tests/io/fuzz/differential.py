"""The readers beside those of the gguf and safetensors packages: which mutants each of them takes.

python -m tests.io.fuzz.differential --inputs 50000 prints how often which rule explains a disagreement, and the
disagreements that none does.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import resource
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .mutants import mutant

SECONDS, MEMORY = 2, 6 << 30  # that an oracle gets for a file; address space, torch's included

# Where we refuse what the other reader takes: our code, and why it takes that.
STRICTER: dict[str, dict[str, str]] = {
    "gguf": {
        **dict.fromkeys(("STRLEN", "TRUNCATED", "ARRLEN", "DATA_SHORT"), "slices past the end are cut short silently"),
        **dict.fromkeys(("KEY_NUL", "KEY_EMPTY", "KEYLEN", "UTF8"), "keys and texts are not looked at"),
        **dict.fromkeys(("NAME_NUL", "NAME_EMPTY", "NAME_CTRL", "NAME_LEN"), "names are not looked at"),
        **dict.fromkeys(("NDIMS", "ZERO_DIM", "BLOCK"), "any number of dimensions, of any size, is taken"),
        **dict.fromkeys(("DIM_RANGE", "ELEM_OVF", "BYTES_OVF", "SUM_OVF"), "products wrap in 64 bits"),
        **dict.fromkeys(("OFF_ALIGN", "OFF_RANGE", "OVERLAP", "HOLE", "ORDER"), "offsets are not looked at, or wrap"),
        "TRAILING": "bytes behind the last tensor are not looked at",
        "BOOL": "any byte is a truth value",
        "KV_TYPE": "the type of an array's elements is not looked at if it has none",
        "ARR_NEST": "arrays of arrays are taken",
        "ALIGN": "any alignment but 0 is taken",
        "COUNT": "files with more entries than are taken here",
        "KEY_DUP": "a warning, or the key under another name",
        "VERSION": "versions are compared in the byte order that they suggest",
        "ENDIAN": "big-endian files are read",
        "NONFINITE": "values are not looked at",
    },
    "safetensors": {
        "ST_BRACE": "white space before the header is taken, against the format's text",
        "ST_EXTRA": "unknown fields are ignored",
        "ST_DUP": "the last of two equal names is taken",
        "ST_NAME": "names may be paths, or have control characters",
        "ST_NDIMS": "any number of dimensions is taken; torch has 64",
        "ST_OVF": "no elements, but strides that overflow in torch",
        "ST_SUBBYTE": "whole bytes are asked of the tensor, not of its rows",
        "ST_JSON": "unknown fields of any form are ignored",
        "BOOL": "values are not looked at",
        "NONFINITE": "values are not looked at",
    },
}


def oracle(kind: str, data: bytes, path: Path) -> str:
    """ "" if the other reader takes the file, else what it raises."""
    try:
        if kind == "safetensors":
            import safetensors

            safetensors.deserialize(data)
            return ""
        import gguf

        path.write_bytes(data)
        with contextlib.redirect_stdout(io.StringIO()):
            reader = gguf.GGUFReader(path)
        for tensor in reader.tensors:
            tensor.data.shape  # noqa: B018
        return ""
    except Exception as problem:
        return repr(problem)[:120]


def _worker(kind: str, first: int, last: int) -> None:
    """One line for each mutant: its number, and what the oracle says."""

    def stop(*_: Any) -> None:
        raise TimeoutError

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGALRM, stop)
    import logging

    logging.disable()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, last):
            signal.alarm(SECONDS)
            try:
                found = oracle(kind, mutant(kind, number)[0], Path(folder) / "m.gguf")
            except TimeoutError:
                found = "TimeoutError()"
            signal.alarm(0)
            print(number, found.replace("\n", " "), flush=True)


def oracles(kind: str, first: int, last: int) -> Iterator[tuple[int, str]]:
    """What the oracle says of each mutant; "died" where it took its process with it."""
    while first < last:
        command = [sys.executable, "-m", "tests.io.fuzz.differential", "--worker", kind, str(first), str(last)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        for line in done.stdout.splitlines():
            number, _, found = line.partition(" ")
            yield int(number), found
            first = int(number) + 1
        if first < last:
            yield first, "died"
            first += 1


def rule(kind: str, ours: str, data: bytes) -> str:
    """What explains that we refuse, by this code, what the other reader takes; "" if nothing does.

    Nothing explains the opposite: what another reader of the format refuses, we refuse.
    """
    if ours in ("ST_JSON", "KV_TYPE"):  # of which only one kind
        from torch_foundry.core.load_errors import LoadError

        from . import target

        try:
            target.open_memory(kind, data)
        except LoadError as error:
            length = data[(error.offset or 0) + 4 :][:8]
            if length != bytes(8) if ours == "KV_TYPE" else error.expected != "dtype, shape or data_offsets":
                return ""
    return f"{ours}: {STRICTER[kind][ours]}" if ours in STRICTER[kind] else ""


def compare(kind: str, first: int, last: int) -> tuple[int, Counter[str], list[tuple[int, str, str]]]:
    """How many both take or refuse, how often which rule explains a difference, and differences without a rule."""
    from . import target  # torch, which oracles do without

    agreed, rules, unexplained = 0, Counter[str](), []
    for number, theirs in oracles(kind, first, last):
        data = mutant(kind, number)[0]
        ours = target.probe(kind, data)
        if bool(ours) == bool(theirs):
            agreed += 1
        elif found := rule(kind, ours, data):
            rules[found] += 1
        else:
            unexplained.append((number, ours, theirs))
    return agreed, rules, unexplained


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        _worker(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        raise SystemExit
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=50_000, help="of each kind of file")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=["gguf", "safetensors"])
    options = parser.parse_args()
    for kind in options.kinds:
        agreed, rules, unexplained = compare(kind, options.first, options.first + options.inputs)
        print(f"{kind}: {agreed} agree, {sum(rules.values())} explained, {len(unexplained)} not")
        for name, count in rules.most_common():
            print(f"  {count:6} {name}")
        for each in unexplained[:40]:
            print("  unexplained:", *each)
