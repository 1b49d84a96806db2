"""Checks removed from the readers, one at a time, and what the corpus says of readers without them.

A check is a condition under which a LoadError is raised; each part of one that is joined by `or`, and each bound of
`not low <= x <= high`, is a check of its own. Without it, the code goes on as if the condition did not hold.
"""

from __future__ import annotations

import ast
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import torch_foundry.io.model_directory
import torch_foundry.text
from tests.io.corpus.case import Case, Sparse
from tests.io.fuzz.target import Memory
from torch_foundry.core.load_errors import LoadError

PREFIX = "torch_foundry."
# In the order in which they import each other; all are made anew around the one that is changed.
MODULES = (
    "io.storage", "io.container", "io.safetensors", "io.gguf.values", "io.gguf.reader", "io.gguf.split",
    "io.gguf.hyperparameters", "io.gguf.blocks", "io.gguf.rope", "io.weights", "io.gguf.layouts",
    "io.gguf.model", "io.model_file",
    "text.charsmap",
    "text.vocabulary", "text.tokenizer", "io.config_json",
    "io.words.skim", "io.words.regexes", "io.words.pipeline", "io.words.folder", "io.words",
    "io.parameters", "io.packed.blocks", "io.packed.bitsandbytes", "io.packed.gptq_awq", "io.packed.mlx",
    "io.packed.mxfp4", "io.packed.fp8", "io.packed.modelopt",
    "io.packed.compressed_tensors", "io.packed.foundry", "io.packed", "io.assemble", "io.model_directory",
)  # fmt: skip
OF_FOLDERS = MODULES[MODULES.index("io.config_json") :]  # for which folders of models are read, and nothing else
# Calls that do nothing but check.
CHECKERS = {
    "io": {
        "part",
        "group_of",
        "text",
        "integer",
        "flag",
        "check_layers",
        "check_tensor",
        "check_towers",
        "check_sizes",
        "check_words",
        "within",
    },
    "text": {"spend", "look", "read", "_number", "_items", "_width", "length"},
}
RAISERS = {"fail", "_fail", "_misplaced", "refuse"}
ELSEWHERE = {"A39", "PT51"}  # refused by what opens files; taken, it takes all memory
CALLERS = {"ValueError", "TypeError", "KeyError", "RuntimeError"}  # mistakes of those who call, not of files
LARGE = 1 << 20  # bytes of files that are left out here


@dataclass(frozen=True)
class Check:
    """module: without the package's name. text: the condition, with a number if it is not the first of its text.

    tree: makes the module without it. codes: of the errors that it raises, and other texts.
    """

    module: str
    text: str
    tree: Callable[[], ast.Module]
    codes: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.module}: {self.text}"


def _refuses(statement: ast.stmt) -> bool:
    """Whether a statement does nothing but raise."""
    if isinstance(statement, ast.Return) and getattr(getattr(statement.value, "func", None), "id", "") == "LoadError":
        return True
    if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):  # of texts: what is wrong
        return isinstance(getattr(statement.value.elts[0], "value", None), str) or "JoinedStr" in ast.dump(statement)
    if isinstance(statement, ast.Raise):
        raised = getattr(statement.exc, "func", None)
        return statement.exc is not None and getattr(raised, "id", "") not in CALLERS
    return isinstance(statement, ast.Expr) and _called(statement) in RAISERS


def _called(statement: ast.Expr) -> str:
    """The name of what a statement calls, if it does nothing else."""
    called = getattr(statement.value, "func", None)
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


def _texts(node: ast.AST) -> frozenset[str]:
    """All texts that stand in a piece of code."""
    return frozenset(
        each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )


def _conditions(test: ast.expr) -> Iterator[tuple[str, Callable[[ast.expr], ast.expr]]]:
    """Parts of a condition, each with what makes the whole condition over without it."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        for at, part in enumerate(test.values):
            for text, without in _conditions(part):

                def joined(whole: ast.expr, at: int = at, without: Any = without) -> ast.expr:
                    assert isinstance(whole, ast.BoolOp)
                    whole.values[at] = without(whole.values[at])
                    return whole

                yield text, joined
        return
    inner = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else None
    if isinstance(inner, ast.Compare) and len(inner.ops) > 1:
        for at, right in enumerate(inner.comparators):
            left = inner.comparators[at - 1] if at else inner.left

            def loosened(whole: ast.expr, at: int = at) -> ast.expr:
                assert isinstance(whole, ast.UnaryOp) and isinstance(whole.operand, ast.Compare)
                chain = whole.operand
                sides = [chain.left, *chain.comparators]
                rest = [ast.Compare(sides[i], [op], [sides[i + 1]]) for i, op in enumerate(chain.ops) if i != at]
                return ast.UnaryOp(ast.Not(), ast.BoolOp(ast.And(), rest) if len(rest) > 1 else rest[0])

            yield ast.unparse(ast.UnaryOp(ast.Not(), ast.Compare(left, [inner.ops[at]], [right]))), loosened
        return
    # evaluated all the same: it may bind names
    yield (
        ast.unparse(test),
        lambda whole: ast.Subscript(ast.Tuple([whole, ast.Constant(False)], ast.Load()), ast.Constant(1), ast.Load()),
    )


def checks(module: str) -> list[Check]:
    """All checks of a module, each with the module's tree without it."""
    source = _source(module).read_text()
    tree = ast.parse(source)
    found: list[Check] = []
    seen: dict[str, int] = {}

    def add(text: str, at: int, change: Callable[[Any], None], codes: frozenset[str] = frozenset()) -> None:
        def changed() -> ast.Module:
            fresh = ast.parse(source)
            change(next(each for i, each in enumerate(ast.walk(fresh)) if i == at))
            return ast.fix_missing_locations(fresh)

        seen[text] = seen.get(text, 0) + 1
        found.append(Check(module, text if seen[text] == 1 else f"{text} #{seen[text]}", changed, codes))

    for at, node in enumerate(ast.walk(tree)):
        if isinstance(node, ast.If):
            for text, without in _conditions(node.test) if _refuses(node.body[-1]) else ():
                change = lambda place, without=without: setattr(place, "test", without(place.test))  # noqa: E731
                add(text, at, change, _texts(node.body[-1]))
            if len(node.orelse) and not isinstance(node.orelse[0], ast.If) and _refuses(node.orelse[-1]):
                add(f"else of {ast.unparse(node.test)}", at, _always, _texts(node.orelse[-1]))
        elif isinstance(node, ast.ExceptHandler) and _refuses(node.body[-1]) and node.type is not None:
            change = lambda place: setattr(place, "type", ast.Tuple([], ast.Load()))  # noqa: E731
            add(f"except {ast.unparse(node.type)}", at, change, _texts(node.body[-1]))
        elif isinstance(node, ast.Expr) and _called(node) in CHECKERS[module.partition(".")[0]]:
            add(ast.unparse(node), at, lambda place: setattr(place, "value", ast.Constant(None)), _texts(node))
    return found


def _always(place: ast.If) -> None:
    place.test = ast.Subscript(ast.Tuple([place.test, ast.Constant(True)], ast.Load()), ast.Constant(1), ast.Load())


class Slow(BaseException):
    """A reader without a check did not come to an end."""


class Readers:
    """The readers, made anew from their sources, one of them changed."""

    def __init__(self, check: Check | None = None, chosen: tuple[str, ...] = MODULES) -> None:
        names = [PREFIX + name for name in chosen]
        saved = {name: sys.modules[name] for name in names if name in sys.modules}
        self.modules: dict[str, ModuleType] = {}
        attributes: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for short, name in zip(chosen, names, strict=True):
                module = ModuleType(name)
                module.__package__ = name.rpartition(".")[0]
                sys.modules[name] = self.modules[short] = module
                parent, _, leaf = name.rpartition(".")
                names_of_parent = vars(sys.modules[parent])
                attributes.append((names_of_parent, leaf, names_of_parent.get(leaf)))
                names_of_parent[leaf] = module  # for `from . import`
                code = compile(check.tree(), name, "exec") if check and check.module == short else _code(short)
                exec(code, module.__dict__)
        finally:
            sys.modules.update(saved)
            for holder, leaf, before in reversed(attributes):
                holder[leaf] = before

    def outcome(self, case: Case, path: Path, data: bytes | None) -> str:
        """The code by which the case is refused, "" if it is accepted, else what was raised."""
        before = [signal.signal(number, _slow) for number in (signal.SIGALRM, signal.SIGVTALRM)]
        signal.setitimer(signal.ITIMER_REAL, 20)  # for what waits
        signal.setitimer(signal.ITIMER_VIRTUAL, 5)
        try:
            self.load(case, path, data)
        except LoadError as error:
            return error.code if case.says in str(error) else f"{error.code} elsewhere"
        except (Exception, Slow) as problem:
            return repr(problem)
        finally:
            for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL):
                signal.setitimer(timer, 0)
            for number, handler in zip((signal.SIGALRM, signal.SIGVTALRM), before, strict=True):
                signal.signal(number, handler)
        return ""

    def load(self, case: Case, path: Path, data: bytes | None) -> None:
        """Everything that a loader does with the file."""
        modules: Any = self.modules
        file: Any = None if data is None else Memory(data, str(path))
        if case.id[0] == "P":
            self._load_folder(path)
            return
        if case.id[0] == "I":
            container = modules["io.safetensors"].open_safetensors(path)
        elif case.id[0] == "G":
            container = modules["io.gguf.split"].open_gguf(min(path.iterdir()))
        elif case.id[0] == "S":
            metadata, tensors = modules["io.safetensors"].read_header(file)
            container = modules["io.container"].Container(path, metadata, tensors, [file])
        else:
            header = modules["io.gguf.reader"].read_header(file)
            container = modules["io.container"].Container(path, header.metadata, header.tensors, [file])
        if case.id[0] in "AV":
            import torch

            model = modules["io.gguf.model"].GgufModel(container)
            vocabulary = modules["text.vocabulary"].check_vocabulary(container.metadata, path, model.sizes["V"])
            modules["io.model_file"].make_config(model)
            modules["text.tokenizer"].tokenizer_from_gguf(container.metadata, path, None, vocabulary)
            for weight in model.weights.values():
                weight.load(torch.device("cpu"))
            return
        for value in container.metadata.values():
            if hasattr(value, "tolist"):
                value.tolist()
        for name, info in container.tensors.items():
            if 0 < info.nbytes < 1 << 26:
                container.read(name)

    def _load_folder(self, path: Path) -> None:
        import torch

        modules: Any = self.modules
        described = modules["io.model_directory"].open_model_directory(path)
        try:
            torch_foundry.text.adopt(described.tokenizer(), path)
            modules["io.assemble"].assemble(
                described.config, described.weights, file=path, device=torch.device("cpu"), dtype=torch.float32,
                generation_config=described.generation_config, progress=False,
            )  # fmt: skip
        finally:
            described.close()


def _slow(signum: int, frame: FrameType | None) -> None:
    raise Slow


_CODES: dict[str, Any] = {}


def _source(module: str) -> Path:
    path = Path(__file__).parents[2] / "torch_foundry" / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _code(module: str) -> Any:
    if module not in _CODES:
        _CODES[module] = compile(_source(module).read_text(), str(_source(module)), "exec")
    return _CODES[module]


def prepare(cases: list[Case], folder: Path) -> list[tuple[Case, Path, bytes | None]]:
    """Small cases, with their bytes if they are a file."""
    found: list[tuple[Case, Path, bytes | None]] = []
    for case in cases:
        if case.id in ELSEWHERE:
            continue
        content = case.build()
        if isinstance(content, dict):
            if not any(isinstance(each, Sparse) for each in content.values()) or case.id[0] == "P":
                found.append((case, case.write(folder), None))
        elif isinstance(content, bytes) and len(content) <= LARGE:
            found.append((case, Path(f"{case.id}.gguf"), content))
    return found


FIRST: dict[str, str | tuple[str, ...]] = {
    "text.vocabulary": "V", "text.charsmap": "V", "text.tokenizer": "V", "io.model_file": "A",
    "io.gguf.split": "G", "io.safetensors": ("S", "I"),
    "io.gguf.hyperparameters": "A", "io.gguf.blocks": "A",
    "io.packed.bitsandbytes": "PB", "io.packed.gptq_awq": ("PG", "PA"),
    "io.packed.mlx": "PM", "io.packed.mxfp4": "PX", "io.packed.fp8": ("PE", "PI", "PN"), "io.packed.modelopt": "PN",
    "io.packed.compressed_tensors": ("PI", "PE"), "io.packed.foundry": "PO",
    "io.packed": ("PC", "PM0"),
    "io.model_directory": "PC",
    "io.config_json": "PC", "io.words.skim": "PT", "io.words.regexes": "PT",
    "io.words.pipeline": "PT", "io.words.folder": "PT", "io.assemble": ("PC", "PM5", "PM7"),
    "io.packed.blocks": "P",
}  # fmt: skip


def noticed(readers: Readers, cases: list[tuple[Case, Path, bytes | None]], check: Check | None = None) -> str:
    """The first case whose outcome is not what it should be; "" if there is none. check: which one is removed."""
    module, codes = (check.module, check.codes) if check else ("", frozenset[str]())
    likely = FIRST.get(module, ("H", "K", "T", "D"))
    ours = [each for each in cases if check is None or (each[0].id[0] == "P") == (module in OF_FOLDERS)]
    chosen = [each for each in ours if module not in OF_FOLDERS or each[0].id.startswith(likely)]

    def unlikely(each: tuple[Case, Path, bytes | None]) -> tuple[bool, bool]:
        return not each[0].id.startswith(likely), codes.isdisjoint(each[0].want)

    for case, path, data in sorted(chosen, key=unlikely):
        outcome = readers.outcome(case, path, data)
        if outcome not in (case.want or ("",)):
            return f"{case.id}: {outcome or 'accepted'}"
    return ""
