"""A kernel from a metallib as machine code: AIR's text made ordinary LLVM, its air.* functions defined, compiled."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import llvmlite.binding as llvm

from tests.air import intrinsics
from tests.air.intrinsics import IDS, UnknownInAir, elements, suffix

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()

BUFFERS = 31  # pointers of buffers come first, those of threadgroup memory behind them
POISON = 0xFF  # NaN in every type
FAST = re.compile(
    r"\b(f(?:add|sub|mul|div|rem|neg|cmp)|call|select|phi)((?: (?:fast|reassoc|nnan|ninf|nsz|arcp|contract|afn))+)\b"
)
FUNCTION = r"air\.[\w.]+|__tensorops_impl_\w+"
DECLARED = re.compile(rf"^declare ([^@\n]+) @({FUNCTION})\(([^\n]*)\)[^\n)]*\n", re.M)
FUNCTION_CONSTANT = re.compile(r"(@_Z\d+([A-Za-z_]\w*?)\.MTL_FC_INIT_(\d+)_\w+ = )(.*) constant (\w+) undef")
LOST = re.compile(r"^.*@llvm\.(lifetime|compiler\.used|used|assume|experimental\.noalias\.scope\.decl)\b.*\n", re.M)


@dataclass(frozen=True)
class Argument:
    """One parameter of a kernel, as the module's metadata has it."""

    position: int
    kind: str  # "buffer", "thread_position_in_grid" ...
    index: int = -1  # of the buffer or the threadgroup memory
    facts: Mapping[str, str] = field(default_factory=dict)  # arg_name, arg_type_name

    @property
    def is_threadgroup(self) -> bool:
        return self.facts.get("address_space") == "3"


@dataclass
class Module:
    """A kernel's text, ready to be compiled."""

    name: str
    text: str
    arguments: list[Argument]
    cpp: dict[str, str]  # the functions of glue.cpp that it calls, by symbol
    functions: list[str]  # the air.* functions that it has


def declared(text: str) -> list[tuple[str, str, list[str]]]:
    """The air.* functions of a module: name, type, types of arguments."""
    found = DECLARED.findall(text)
    return [(name, bare(returns.strip()), [bare(a) for a in split(args)]) for returns, name, args in found]


def split(text: str) -> list[str]:
    """A list of types or arguments at its commas."""
    parts, depth, now = [], 0, ""
    for letter in text + ",":
        depth += (letter in "<([{") - (letter in ">)]}")
        if letter == "," and not depth:
            parts.append(now.strip())
            now = ""
        else:
            now += letter
    return [part for part in parts if part]


def bare(text: str) -> str:
    """A type without its attributes."""
    found = re.match(r"<[^>]+>|\w+", re.sub(r"^(?:(?:noundef|zeroext|signext|fastcc|nofpclass\([^)]*\)) )+", "", text))
    if not found:
        raise UnknownInAir(text)
    return found[0]


def disassembled(bitcode: bytes) -> str:
    """The module's text, in this LLVM's words."""
    with llvm.parse_bitcode(bitcode) as module:
        return str(module)


def prepared(
    name: str,
    text: str,
    constants: Mapping[int, int | float],
    contract: bool = False,
    mutate: Callable[[str], str] = lambda text: text,
) -> Module:
    """The text of one kernel's module as LLVM for this machine.

    contract: whether a product and a sum that Apple may fuse (llvm.fmuladd) are one operation, or two roundings.
    mutate: for tests, changes AIR's text. UnknownInAir for what nothing stands for; KeyError for an unknown constant.
    """
    text = mutate(text)
    arguments = _metadata(text)
    groups = re.findall(r"^(@\S+) = [^\n]*addrspace\(3\) global (.+?) (?:undef|poison|zeroinitializer)\b", text, re.M)
    text = re.sub(r"^(target |source_filename).*\n", "", text, flags=re.M)
    text = LOST.sub("", text)
    # Another function may change a threadgroup variable: here that is what other lanes do while this one waits.
    text = re.sub(r"^(@\S+ = ).*addrspace\(3\) global", r"\1global", text, flags=re.M)
    text = re.sub(r" ?addrspace\(\d+\)", "", text).replace("addrspacecast", "bitcast")
    text = re.sub(r"^!(air|llvm)\.[\w.]+ = .*\n", "", text, flags=re.M)
    text = text.replace("externally_initialized ", "")
    text = re.sub(r',? section "air\.\w+"', "", text)
    text = FAST.sub(r"\1", text)
    text = _numbered(_multiply_add(_specialised(text, constants), contract))
    definitions, needed, cpp, functions = [], {"declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)"}, {}, []
    for function, returns, args in declared(text):
        made = intrinsics.body(function, returns, args)
        collective = intrinsics.is_collective(function)
        named = ", ".join(f"{kind} %{i}" for i, kind in enumerate((["i32"] if collective else []) + args))
        lines = "\n ".join(made.lines)
        how = "noinline convergent" if collective else "alwaysinline"
        definitions.append(f"define internal {returns} @{function}({named}) {how} {{\n {lines}\n}}\n")
        needed |= set(made.declared)
        functions.append(function)
        if made.cpp:
            cpp[intrinsics.symbol(function)] = made.cpp
    text = DECLARED.sub("", text)
    there = set(re.findall(r"^declare [^\n]*@([\w.]+)\(", text, re.M))
    needed = {line for line in needed if re.search(r"@([\w.]+)\(", line)[1] not in there}  # type: ignore[index]
    parts = [text, *sorted(needed), *definitions, _entry(name, text, arguments), _poison(groups)]
    return Module(name, "\n".join(parts), arguments, cpp, functions)


def _specialised(text: str, constants: Mapping[int, int | float]) -> str:
    """Function constants with their values; those that aren't given are 0."""
    left = dict(constants)

    def value(found: re.Match[str]) -> str:
        given = left.pop(int(found[3]), 0)
        literal = f"{float(given):.6e}" if found[5] in ("float", "half") else str(int(given))
        return f"{found[1]}{found[4]} constant {found[5]} {literal}"

    text = FUNCTION_CONSTANT.sub(value, text)
    if left:
        raise KeyError(f"no function constants {sorted(left)}")
    return text


def _multiply_add(text: str, contract: bool) -> str:
    if contract:
        return text.replace("@llvm.fmuladd.", "@llvm.fma.")
    for kind in sorted(set(re.findall(r"^declare ([^@\n]+) @llvm\.fmuladd\.", text, re.M))):
        name = suffix(kind)
        two = f"%m = fmul {kind} %0, %1\n %r = fadd {kind} %m, %2\n ret {kind} %r"
        definition = (
            f"define internal {kind} @muladd.{name}({kind} %0, {kind} %1, {kind} %2) alwaysinline {{\n {two}\n}}\n"
        )
        text = re.sub(rf"^declare .*@llvm\.fmuladd\.{name}\(.*\n", lambda _, made=definition: made, text, flags=re.M)
        text = text.replace(f"@llvm.fmuladd.{name}(", f"@muladd.{name}(")
    return text


def _numbered(text: str) -> str:
    """Gives each call in which lanes meet a number: lanes at different calls don't meet."""
    count = 0

    def number(found: re.Match[str]) -> str:
        nonlocal count
        if not intrinsics.is_collective(found[2]):
            return found[0]
        count += 1
        return f"{found[1]}i32 {count}{', ' if found[3] != ')' else ''}{found[3]}"

    return re.sub(rf"(call [^@\n]*@({FUNCTION})\()(.)", number, text)


def _metadata(text: str) -> list[Argument]:
    nodes = dict(re.findall(r"^(!\d+) = (?:distinct )?!\{(.*)\}$", text, re.M))
    kernel = re.search(r"^!air\.kernel = !\{(!\d+)", text, re.M)
    if not kernel:
        raise UnknownInAir("no kernel")
    arguments = []
    for node in split(nodes[split(nodes[kernel[1]])[2]]):
        fields = split(nodes[node])
        words = [f.removeprefix('!"air.').rstrip('"') if f.startswith("!") else f.split()[-1] for f in fields]
        facts = {}
        for at, word in enumerate(words[:-1]):
            if word in ("location_index", "address_space", "arg_name", "arg_type_name", "arg_type_size"):
                facts[word] = words[at + 1].lstrip('!"')
        arguments.append(Argument(int(words[0]), words[1], int(facts.get("location_index", -1)), facts))
    return arguments


def _entry(name: str, text: str, arguments: Iterable[Argument]) -> str:
    """A function of (buffers, positions) that calls the kernel with its arguments."""
    head = re.search(rf"^define[^\n]*@\"?{re.escape(name)}\"?\(", text, re.M)
    if not head:
        raise UnknownInAir(f"no function {name}")
    at, depth = head.end(), 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    types = [bare(part) for part in split(text[head.end() : at - 1])]
    lines, call = [], []
    for argument, kind in zip(arguments, types, strict=True):
        n = argument.position
        if kind == "ptr":
            if argument.index < 0:
                raise UnknownInAir(f"argument {argument}")
            slot = argument.index + (BUFFERS if argument.is_threadgroup else 0)
            lines += [f"%s{n} = getelementptr ptr, ptr %buffers, i64 {slot}", f"%a{n} = load ptr, ptr %s{n}"]
            call.append(f"ptr %a{n}")
            continue
        if argument.kind not in IDS:
            raise UnknownInAir(f"argument {argument}")
        count, element = elements(kind)
        value = "undef"
        for k in range(count):
            lines += [f"%g{n}.{k} = getelementptr i32, ptr %ids, i64 {IDS[argument.kind] + k}"]
            lines += [f"%l{n}.{k} = load i32, ptr %g{n}.{k}", f"%h{n}.{k} = trunc i32 %l{n}.{k} to i16"]
            one = f"%{'h' if element == 'i16' else 'l'}{n}.{k}"
            if count > 1:
                lines.append(f"%v{n}.{k} = insertelement {kind} {value}, {element} {one}, i32 {k}")
                value = f"%v{n}.{k}"
        call.append(f"{kind} {value if count > 1 else one}")
    body = "\n ".join([*lines, f'call void @"{name}"({", ".join(call)})', "ret void"])
    return f"define void @air.entry(ptr %buffers, ptr %ids) {{\n {body}\n}}\n"


def _poison(groups: Iterable[tuple[str, str]]) -> str:
    """A function that fills the threadgroup variables: their values mean nothing before a kernel has written them."""
    lines = []
    for number, (name, kind) in enumerate(groups):
        lines.append(f"%e{number} = getelementptr {kind}, ptr null, i32 1")
        lines.append(f"%n{number} = ptrtoint ptr %e{number} to i64")
        lines.append(f"call void @llvm.memset.p0.i64(ptr {name}, i8 {POISON - 256}, i64 %n{number}, i1 false)")
    body = "\n ".join([*lines, "ret void"])
    return f"define void @air.poison() {{\n {body}\n}}\n"


class Compiled:
    """Machine code of a module, as long as this object lives."""

    def __init__(self, module: Module, glue: ctypes.CDLL) -> None:
        for name in (*module.cpp, "air_wg_barrier", "air_simdgroup_barrier"):
            llvm.add_symbol(name, ctypes.cast(getattr(glue, name), ctypes.c_void_p).value)
        for name in ("truncsfbf2", "truncsfhf2", "truncdfhf2", "extendhfsf2"):
            llvm.add_symbol(f"__{name}", ctypes.cast(getattr(glue, f"air_{name}"), ctypes.c_void_p).value)
        llvm.add_symbol("fmaf16", ctypes.cast(glue.air_fmaf16, ctypes.c_void_p).value)
        parsed = llvm.parse_assembly(module.text)
        parsed.verify()
        machine = llvm.Target.from_default_triple().create_target_machine(cpu="x86-64-v3", opt=2, jit=True)
        self._engine = llvm.create_mcjit_compiler(parsed, machine)
        self._engine.finalize_object()
        self._engine.run_static_constructors()
        self.entry = self._engine.get_function_address("air.entry")
        self.poison = self._engine.get_function_address("air.poison")
