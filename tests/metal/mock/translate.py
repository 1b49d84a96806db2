"""The first half of the mock's compiler: `python translate.py MSL RESULT NAME VERSION`.

RESULT gets the translation as JSON, with the names of the function constants that each kernel reads. Exit code 1: the
source has an error, and RESULT says which. Headers of tensors are there as Metal 4.0 alone. Imports no torch.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))
from torch_foundry.msl import Translation, translate
from torch_foundry.msl.model import MslError
from torch_foundry.msl.syntax.preprocess import has_tensors
from torch_foundry.msl.usage import constants_used


def described(translation: Translation) -> str:
    """The translation as JSON, each kernel with `reads`: the names of function constants."""
    data = json.loads(translation.to_json())
    for kind, kernels in (("kernels", translation.kernels), ("templates", translation.templates)):
        for entry, kernel in zip(data[kind], kernels, strict=True):
            named = replace(kernel, entry=kernel.entry or kernel.name)
            entry["reads"] = [constant.name for constant in constants_used(translation, named)]
    return json.dumps(data)


def main() -> int:
    source, result, name, version = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    text = source.read_text() + "\n"
    try:
        if version < 400 and has_tensors(text):
            raise MslError(name, 1, "'metal_tensor' file not found")
        text, code = described(translate(text, name=name, metal_version=version)), 0
    except MslError as error:
        text, code = str(error), 1
    temporary = result.with_suffix(f".{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(result)
    return code


if __name__ == "__main__":
    sys.exit(main())
