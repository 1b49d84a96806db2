"""Every check of the readers is needed: without it, a file of the corpus is taken, or refused for another reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.io.check_mutation import MODULES, Readers, checks, noticed, prepare
from tests.io.corpus.case import Case
from tests.io.corpus.manifest import CASES

pytestmark = pytest.mark.tier("nightly")

# Checks that no small file can show to be missing, and why. Those that one does show fail the test as well.
REDUNDANT = {
    "io.safetensors: file.size > _LONGEST_INDEX": "its file (I22) is too large to be read so often",
    "io.safetensors: name in ('', '.', '..')": "names have to end in .safetensors: another reason, the same code",
    "io.container: on_device is not None and (failed := devices.of(on_device.device).read_file(file.path, offset,"
    " on_device))": "only Metal reads by itself",
    "io.gguf.values: count > _MOST_STRINGS": "its file (K62) is too large to be read so often",
    "io.gguf.values: bad >= 0": "reading goes on string by string, by code that finds the bad one again",
    "io.gguf.values: except (struct.error, UnicodeDecodeError)": "only a file that changes meanwhile gets there",
    "io.gguf.reader: in_line and offset < expected": "overlaps are found behind the last tensor too, at more cost",
    "io.gguf.model: QKVO[0] in self.architecture.layer and queries is not None and (queries.shape != (heads * head,"
    " hidden))": "each tensor's shape is checked later on; this one first, for a better message",
    "io.model_file: except Exception": "within the tables' ranges transformers refuses none that is known",
    "text.tokenizer: backend.get_vocab_size() != len(vocabulary.tokens)": "tokens that are one are refused before",
    "text.tokenizer: except BaseException": "what the library is known to panic at is refused before",
    "text.vocabulary: isinstance(value, (str, bytes)) #2": "a string's length is not the vocabulary's, or its elements"
    " are no numbers",
    "text.vocabulary: array.ndim != 1": "GGUF has no arrays of arrays: for metadata that come from elsewhere",
    "io.config_json: type(each) is not int": "newer transformers checks types itself, and first",
    "io.model_directory: check_layers(config.get_text_config(), container.tensors, path)": "layers without tensors are"
    " found when they have been built, at more cost",
    "io.model_directory: len(tensor) > LONGEST_NAME and (not permits('TENSOR_EXTRA', tensor))": "the model has no such"
    " parameter, which is found later, at more cost",
    "io.model_directory: of_mlx and kind not in TOWERS and images": "no file asks for images: test_mlx_towers.py does",
    "io.words.folder: not isinstance(made, PreTrainedTokenizerFast)": "classes of other kinds are refused by name;"
    " for what transformers makes of folders without tokenizer.json",
    "io.words.folder: any((isinstance(v, str) and len(v) > LONGEST_TOKEN for k, v in found.items() if"
    " k.endswith('_token')))": "found in what is built, at more cost",
    "text.vocabulary: except UnicodeEncodeError": "GGUF's strings are UTF-8: for metadata that come from elsewhere",
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Case, Path, bytes | None]]:
    return prepare(CASES, tmp_path_factory.mktemp("corpus"))


def test_nothing_is_noticed_where_nothing_is_removed(cases: list[tuple[Case, Path, bytes | None]]) -> None:
    assert noticed(Readers(), cases) == ""
    assert len(cases) > 400


@pytest.mark.parametrize("module", MODULES)
def test_a_removed_check_is_noticed(module: str, cases: list[tuple[Case, Path, bytes | None]]) -> None:
    found = {check.name: noticed(Readers(check), cases, check) for check in checks(module)}
    missed = {name for name, by in found.items() if not by}
    assert missed == {name for name in REDUNDANT if name.startswith(f"{module}:")}


def test_there_are_checks() -> None:
    names = [check.name for module in MODULES for check in checks(module)]
    assert len(set(names)) == len(names) >= 260 and REDUNDANT.keys() <= set(names)
