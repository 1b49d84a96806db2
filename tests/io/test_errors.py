"""LoadError: what programs and people read off it."""

import pickle
import re
from pathlib import Path

import pytest

import torch_foundry
from torch_foundry.core.load_errors import CODES


def test_a_load_error_says_what_where_and_by_which_code() -> None:
    error = torch_foundry.LoadError("COUNT", "m.gguf", "n_tensors", expected="at most 3", found="9", offset=8)
    assert str(error) == "m.gguf: n_tensors: expected at most 3, found 9 at byte 8 [COUNT]"
    assert (error.code, error.file, error.field, error.offset) == ("COUNT", "m.gguf", "n_tensors", 8)


def test_a_load_error_crosses_processes() -> None:
    error = torch_foundry.LoadError("MAGIC", "m.gguf", expected="GGUF", found="tjgg")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), vars(copy)) == (str(error), vars(error))


def test_texts_of_the_file_do_not_reach_the_terminal_as_they_are() -> None:
    error = torch_foundry.LoadError("SHAPE", "m.gguf", "a\x1b[31m", expected="x" * 10_000, found="\ud800\n")
    assert error.field == "a\\x1b[31m" and error.found == "\\ud800\\n"
    assert str(error).isprintable() and len(str(error)) < 1000


def test_only_codes_that_the_table_explains() -> None:
    with pytest.raises(ValueError, match="NONSENSE"):
        torch_foundry.LoadError("NONSENSE", "m.gguf", expected="", found="")


def test_every_code_that_is_raised_is_in_the_table() -> None:
    root = Path(torch_foundry.__file__).parent
    raised = re.compile(r'(?:fail|LoadError|Fault)[({]\s*"([A-Z][A-Z0-9_]+)"')
    files = [*root.rglob("*.py"), *(root.parent / "csrc" / "loaders").glob("*")]
    found = {code for file in files for code in raised.findall(file.read_text())}
    assert len(found) > 60 and found <= CODES.keys()
