"""The error of every loader: its codes, and which faults a caller may accept."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase

_LONGEST = 800  # letters of a text that a message quotes; all known architectures are one


# What the codes of a LoadError mean. They stay the same from version to version.
CODES: dict[str, str] = {
    # paths and files
    "ABSENT": "there is no such file",
    "PERMISSION": "the file may not be read",
    "LOOP": "symbolic links lead round in a circle",
    "NOT_FILE": "a folder, pipe, device or socket where a regular file is wanted",
    "NOT_MODEL": "a folder, or a kind of file, that holds no model known here",
    "IO": "the system failed to read the file",
    "CHANGED": "the file was rewritten, cut or replaced after it had been opened",
    "PICKLE": "weights as a pickle, which could run code when read",
    # GGUF: header
    "TRUNCATED": "the file ends before what its header promises",
    "MAGIC": "not a file of this kind",
    "VERSION": "a version that is not read here",
    "ENDIAN": "written on a big-endian machine",
    "COUNT": "more entries than the file has room for, or than are taken",
    # GGUF: metadata
    "STRLEN": "a string longer than the rest of the file, or than is taken",
    "KEYLEN": "a key longer than the format allows",
    "KEY_EMPTY": "a key without a name",
    "KEY_NUL": "a key with a zero byte in it",
    "KEY_DUP": "the same key twice",
    "KEY_TYPE": "a key whose value is of another type than it has to be",
    "KV_TYPE": "a value of an unknown type",
    "UTF8": "text that is not UTF-8",
    "BOOL": "a truth value that is neither 0 nor 1",
    "ARR_NEST": "an array of arrays",
    "ARRLEN": "an array longer than the rest of the file, or than is taken",
    "ALIGN": "an alignment that is no power of two from 8 on",
    "ALIGN_TYPE": "an alignment that is no unsigned 32-bit integer",
    "SPLIT": "parts of a model that do not belong together, or not all of them",
    # GGUF: tensors
    "NAME_EMPTY": "a tensor without a name",
    "NAME_NUL": "a tensor's name with a zero byte in it",
    "NAME_CTRL": "a tensor's name with a control character in it",
    "NAME_LEN": "a tensor's name longer than the format allows",
    "NAME_DUP": "two tensors of one name",
    "NDIMS": "more dimensions than the format allows, or none",
    "ZERO_DIM": "a dimension of 0",
    "DIM_RANGE": "a dimension over 2^63 - 1",
    "ELEM_OVF": "more than 2^63 - 1 elements",
    "BYTES_OVF": "a tensor of more than 2^63 - 1 bytes",
    "SUM_OVF": "tensors of more than 2^63 - 1 bytes together",
    "TYPE": "an unknown type of tensor",
    "TYPE_GONE": "a type that the format has given up",
    "BLOCK": "rows that are not whole blocks of their type",
    "OFF_RANGE": "a tensor that begins behind the end of the file",
    "OFF_ALIGN": "a tensor that does not begin at the alignment",
    "OVERLAP": "two tensors in the same bytes",
    "ORDER": "tensors that lie in another order than they are listed in",
    "HOLE": "bytes between two tensors that belong to neither",
    "DATA_SHORT": "the file ends before its last tensor",
    "TRAILING": "bytes behind the last tensor",
    "NONFINITE": "a NaN or an infinity",
    # safetensors
    "ST_SHORT": "too short to hold a header",
    "ST_HLEN": "a header longer than the file, or than the format allows",
    "ST_BRACE": "a header that does not begin with a brace",
    "ST_JSON": "a header that is not JSON of the form that the format describes",
    "ST_UTF8": "a header that is not UTF-8",
    "ST_DUP": "the same name twice",
    "ST_NAME": "a tensor's name with control characters, lone surrogates or a path in it",
    "ST_DTYPE": "an unknown dtype",
    "ST_EXTRA": "a field that the format does not know",
    "ST_NDIMS": "more dimensions than are taken",
    "ST_OVF": "a tensor of more than 2^63 - 1 elements or bytes",
    "ST_SUBBYTE": "rows of elements smaller than a byte that are not whole bytes",
    "ST_OFFS": "offsets that are negative, too large or the wrong way round",
    "ST_SIZE": "offsets that are not as far apart as shape and dtype say",
    "ST_OVERLAP": "two tensors in the same bytes",
    "ST_HOLE": "bytes that belong to no tensor",
    "ST_TRUNC": "the file ends before its last tensor",
    "ST_TRAILING": "bytes behind the last tensor",
    # folders of shards
    "IDX_JSON": "an index that is not JSON of the form that is expected",
    "IDX_PATH": "a shard's name that leads out of its folder",
    "IDX_FILE": "a shard that is not there",
    "IDX_DUP": "the same tensor in two shards, or the same name twice",
    "IDX_MISSING": "a tensor that is not in the shard that the index names",
    "IDX_EXTRA": "a tensor in a shard that the index does not know",
    # models
    "ARCH_MISSING": "no architecture named",
    "ARCH_UNKNOWN": "an architecture that is not known here",
    "CONFIG": "a config.json that is not of the form that is expected",
    "HP_MISSING": "a hyperparameter that is not there",
    "HP_TYPE": "a hyperparameter of the wrong type",
    "HP_RANGE": "a hyperparameter that no model can have",
    "SHAPE": "a tensor of another shape than the model's",
    "TENSOR_MISSING": "a tensor that the model needs is not there",
    "TENSOR_EXTRA": "a tensor that the model has no place for",
    "TENSOR_TYPE": "a tensor of a type that can't be a weight",
    # packed weights in safetensors
    "QUANT_METHOD": "weights packed by a method that is not known here",
    "QUANT_CONFIG": "a setting of the packing that is absent or that nothing can have",
    "PACK_PART": "a tensor that a packed weight needs, its scales for instance, is not there",
    "PACK_TYPE": "a part of a packed weight that is of another type than it has to be",
    "PACK_SHAPE": "a part of a packed weight whose shape does not go with that of the others",
    "PACK_GROUP": "rows that are not whole groups or blocks",
    "PACK_ORDER": "an order of columns, or the groups that they belong to, that contradicts itself",
    "PACK_SCALE": "scales that no format here can hold",
    "PACK_STATE": "a description of a packed weight that is not of the form that is expected",
    "PACK_TABLE": "values of codes that are not those of the format",
    # vocabularies
    "VOCAB_MISSING": "no vocabulary, or a part of it is not there",
    "VOCAB_SIZE": "a vocabulary of another size than the embedding",
    "VOCAB_LEN": "lists about tokens that are not of the same length",
    "VOCAB_DUP": "the same token twice",
    "VOCAB_TYPE": "a part of the vocabulary that is of the wrong type",
    "TOKEN_ID": "a token id outside the vocabulary",
    "TOKEN_TYPE": "a type of token that is not known",
    "TOKENIZER": "a tokenizer that is not known here, or that can't be built",
    "MERGES": "merges that are absent, or that are not pairs of tokens",
    "CHARSMAP": "a table of normalisations that contradicts itself",
    # chat templates
    "TMPL_SYNTAX": "a chat template that is not one",
    "TMPL_SANDBOX": "a chat template that reaches for what is none of its business",
    "TMPL_INCLUDE": "a chat template that reads other files",
    "TMPL_BUDGET": "a chat template that takes too much time, memory or output",
    "TMPL_OUTPUT": "a chat template that drops messages",
    "TMPL_UNDEF": "a chat template that uses what is not defined",
    "TMPL_ERROR": "a chat template that fails",
    # sessions
    "SESSION": "no saved session, or one of another model",
}

TOLERABLE = {  # code -> what happens if it is allowed
    "TENSOR_EXTRA": "tensors that the model has no place for are left out",
    "TENSOR_MISSING": "parameters that the file lacks become zeros (norms: what a new model has)",
    "NONFINITE": "infinities and NaNs are loaded as they are",
    "VOCAB_MISSING": "a file or folder without any vocabulary has no tokenizer: None",
}


class LoadError(Exception):
    """A file that can't be loaded, and what is wrong with it.

    Attributes, which stay the same from version to version:
        code: what kind of fault it is ("TRUNCATED", "SHAPE", ... of `CODES`), for programs
        file: path of the file
        field: what in the file ("n_tensors", "blk.0.attn_q.weight", a metadata key ...); "" for the file as a whole
        offset: where in the file, in bytes; None where that says nothing
        expected, found: what a good file has there, and what this one has
    """

    def __init__(
        self,
        code: str,
        file: str | os.PathLike[str],
        field: str = "",
        *,
        expected: str,
        found: str,
        offset: int | None = None,
    ) -> None:
        if code not in CODES:
            raise ValueError(f"code: {code!r} is not in CODES")
        self.code, self.file, self.offset = code, os.fspath(file), offset
        self.field, self.expected, self.found = _plain(field), _plain(expected), _plain(found)
        where = f"{self.field}: " if field else ""
        at = "" if offset is None else f" at byte {offset}"
        super().__init__(f"{_plain(self.file)}: {where}expected {self.expected}, found {self.found}{at} [{code}]")

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (self.code, self.file, self.field, self.expected, self.found, self.offset)


def is_fault(error: BaseException) -> bool:
    """Whether something has failed, and nobody interrupted it: a panic of the tokenizers library is no Exception."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _plain(text: str) -> str:
    """What of a file's text a message may show: nothing that a terminal would obey, and not without end."""
    text = text[: _LONGEST + 1]
    text = text if text.isprintable() else text.encode("unicode_escape", "surrogatepass").decode()
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _rebuild(code: str, file: str, field: str, expected: str, found: str, offset: int | None) -> LoadError:
    return LoadError(code, file, field, expected=expected, found=found, offset=offset)


class AllowedFaults:
    """Accepted faults, as "CODE" or "CODE:pattern". A shell pattern is matched with the tensor's name in the file, or
    with the parameter's name if it has none there. ValueError for a code that can't be accepted.
    """

    def __init__(self, faults: Iterable[str] = ()) -> None:
        if isinstance(faults, str):
            faults = (faults,)
        self._patterns = [(code, pattern or "*") for code, _, pattern in (fault.partition(":") for fault in faults)]
        for code, _ in self._patterns:
            if code not in TOLERABLE:
                raise ValueError(f"allow: expected some of {', '.join(TOLERABLE)}, got {code!r}")

    def __call__(self, code: str, name: str) -> bool:
        """Whether fault `code` of tensor `name` is accepted."""
        return any(code == known and fnmatchcase(name, pattern) for known, pattern in self._patterns)
