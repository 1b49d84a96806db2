"""What a translation yields: the C++ text and the signatures of the kernels in it; or the error."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


class MslError(Exception):
    """The source cannot be translated; the message starts with `file:line:`."""

    def __init__(self, file: str, line: int, message: str) -> None:
        super().__init__(f"{file}:{line}: {message}" if line else f"{file}: {message}")
        self.file = file
        self.line = line
        self.message = message


@dataclass(frozen=True)
class Argument:
    """One kernel parameter."""

    name: str
    kind: str  # "buffer" | "threadgroup" | "builtin"
    type: str  # as written, without name and attributes: "device const half*"
    index: int | None = None  # buffer or threadgroup index
    builtin: str | None = None  # "thread_position_in_grid", ...
    address_space: str = ""  # "device" | "constant" | "threadgroup" | ""
    writable: bool = False
    optional_on: str | None = None  # the function constant that switches the argument on

    def tag(self, *, named: bool = True) -> str:
        """The argument's element of `msl_::args<...>`; `named`: whether the kernel's text names it at all."""
        if self.builtin:
            return f"msl_::{self.builtin}"
        present = f", bool({self.optional_on})" if self.optional_on else "" if named else ", false"
        return f"msl_::{self.kind}<{self.index}{present}>"


@dataclass(frozen=True)
class Kernel:
    """A kernel, or a kernel template (then `entry` lacks the arguments)."""

    name: str  # the name the host asks for
    entry: str  # C++ expression that names the function: "ns::rms_norm<half>"
    signature: str  # alias of its `msl_::args<...>`: "ns::rms_norm_msl_args"
    args: list[Argument]
    file: str
    line: int
    end_line: int = 0  # last line of the function's body, where `line` is that of the function


@dataclass(frozen=True)
class FunctionConstant:
    """`constant T name [[function_constant(index)]]`; not required if the source asks whether it is defined."""

    name: str
    index: int
    type: str
    required: bool


@dataclass(frozen=True)
class Translation:
    """C++ text of one Metal source, with what it declares."""

    source: str
    kernels: list[Kernel] = field(default_factory=list)
    templates: list[Kernel] = field(default_factory=list)
    function_constants: list[FunctionConstant] = field(default_factory=list)
    files: list[str] = field(default_factory=list)  # include closure, absolute, the file itself first
    msl: str = ""  # the source with its includes in place: what Apple's compiler gets

    def to_json(self) -> str:
        """All of it as JSON text."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Translation:
        """The inverse of `to_json`."""
        data = json.loads(text)

        def kernels(items: list[dict]) -> list[Kernel]:
            return [Kernel(**{**k, "args": [Argument(**a) for a in k["args"]]}) for k in items]

        return Translation(
            source=data["source"],
            kernels=kernels(data["kernels"]),
            templates=kernels(data["templates"]),
            function_constants=[FunctionConstant(**c) for c in data["function_constants"]],
            files=data["files"],
            msl=data["msl"],
        )
