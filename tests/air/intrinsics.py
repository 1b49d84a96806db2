"""The air.* functions: those with an exact meaning as LLVM's own, the others as calls of the prelude (glue.cpp).

What LLVM has an equal for (conversions, integer functions, rounding, fma, atomics) is written in its terms, so that the
prelude is checked by somebody else's words. What no text fixes bit by bit (exp, the order of simd_sum, a product of
matrices) is the prelude's, so that the two sides can differ in nothing that AIR doesn't prove anyway.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SIZES = {"half": 2, "bfloat": 2, "float": 4, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "i1": 1}
SUFFIXES = {"half": "f16", "float": "f32", "bfloat": "bf16"}
SIGNED = {"i8": "char", "i16": "short", "i32": "int", "i64": "long"}
CPP = {"half": "half", "float": "float", "bfloat": "bfloat", "i1": "bool", **{k: f"u{v}" for k, v in SIGNED.items()}}
# What a kernel may ask for, and where glue.cpp puts it.
IDS = {
    "thread_position_in_grid": 0, "threadgroup_position_in_grid": 3, "thread_position_in_threadgroup": 6,
    "threads_per_threadgroup": 9, "threadgroups_per_grid": 12, "threads_per_grid": 15,
    "dispatch_threads_per_threadgroup": 18, "thread_index_in_simdgroup": 21, "simdgroup_index_in_threadgroup": 22,
    "thread_index_in_threadgroup": 23, "threads_per_simdgroup": 24, "simdgroups_per_threadgroup": 25,
    "quadgroup_index_in_threadgroup": 26, "thread_index_in_quadgroup": 27,
}  # fmt: skip
ROUNDING = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "rint": "rint", "round": "round", "fabs": "fabs"}
BITS = {"popcount": "ctpop", "clz": "ctlz", "ctz": "cttz", "reverse_bits": "bitreverse"}
ATOMICS = {"add": "add", "sub": "sub", "and": "and", "or": "or", "xor": "xor", "xchg": "xchg"}
COLLECTIVE = re.compile(r"(simd|quad)_(?!is_helper)|simdgroup_matrix_8x8_(multiply|load|store)")
MATRIX = "simdgroup_matrix_8x8_"
TENSORS = "__tensorops_impl_matmul2d_op_"
SHORT = {"f16": "half", "b16": "bfloat", "f32": "float"}  # in names of products


class UnknownInAir(Exception):
    """An air.* function, or a kind of argument, that nothing stands for yet."""


class Body(NamedTuple):
    """A function's IR; `declared` are those it calls, `cpp` is what it needs of glue.cpp."""

    lines: list[str]
    declared: list[str]
    cpp: str = ""


def elements(llvm_type: str) -> tuple[int, str]:
    """Number and type of a value's elements."""
    found = re.fullmatch(r"<(\d+) x (\w+)>", llvm_type)
    return (int(found[1]), found[2]) if found else (1, llvm_type)


def suffix(llvm_type: str) -> str:
    """How LLVM's functions name a type."""
    count, element = elements(llvm_type)
    return (f"v{count}" if count > 1 else "") + SUFFIXES.get(element, element)


def is_collective(name: str) -> bool:
    """Whether lanes meet in it: then each of its calls is a place of its own."""
    if name.startswith(TENSORS):
        return "_run_" in name
    base = name.split(".")[1]
    return name in ("air.wg.barrier", "air.simdgroup.barrier") or bool(COLLECTIVE.match(base))


def symbol(name: str) -> str:
    """The function of glue.cpp that stands for an air.* function."""
    return "air_" + re.sub(r"\W", "_", name.removeprefix("air."))


def body(name: str, returns: str, args: list[str]) -> Body:
    """What the function does. A collective's first argument is the number of its call. UnknownInAir if unknown."""
    if name.startswith(TENSORS):
        return _tensors(name, returns, args)
    parts = name.split(".")
    base = re.sub(r"^(fast|precise)_", "", parts[1])
    if name in ("air.wg.barrier", "air.simdgroup.barrier"):
        call = f"call void @{symbol(name)}(i32 %1, i32 %0)"
        return Body([call, "ret void"], [f"declare void @{symbol(name)}(i32, i32)"])
    if base == "get_simdgroup_size":
        return Body([f"ret {returns} 32"], [])
    if base == "get_thread_index_in_simdgroup":
        cpp = f"AIR {symbol(name)}({CPP[returns]}* r) {{ *r = msl_::own_lane(); }}"
        return _called(name, returns, args, False, cpp)
    if base == "is_uniform":
        return Body(["ret i1 false"], [])
    if base == "normalize_function_constant_predicate":
        return Body([f"ret {returns} %0"], [])
    if base == "convert":
        return _convert(returns, args[0], parts[2], parts[4])
    if base == "atomic":
        return _atomic(name, returns, args)
    for exact in (_integer, _floating):
        if found := exact(base, parts, returns, args):
            return found
    if base.startswith(MATRIX):
        return _matrix(name, base.removeprefix(MATRIX), returns, args)
    return _prelude(name, base, parts, returns, args)


def _returned(
    expression: str, returns: str, declared: list[str] | None = None, before: list[str] | None = None
) -> Body:
    return Body([*(before or []), f"%r = {expression}", f"ret {returns} %r"], declared or [])


def _llvm(function: str, kind: str, *values: str) -> tuple[str, str]:
    """A call of LLVM's function for values of one type, and its declaration."""
    name = f"@llvm.{function}.{suffix(kind)}"
    arguments = ", ".join(f"{kind} {value}" for value in values)
    return f"call {kind} {name}({arguments})", f"declare {kind} {name}({', '.join([kind] * len(values))})"


def _convert(returns: str, given: str, to: str, source: str) -> Body:
    wide, narrow = SIZES[elements(given)[1]], SIZES[elements(returns)[1]]
    if to == "f" and source == "f":
        if given == returns:
            return Body([f"ret {returns} %0"], [])
        if wide == narrow:  # between half and bfloat
            count = elements(given)[0]
            middle = f"<{count} x float>" if count > 1 else "float"
            return _returned(f"fptrunc {middle} %w to {returns}", returns, None, [f"%w = fpext {given} %0 to {middle}"])
        return _returned(f"{'fpext' if wide < narrow else 'fptrunc'} {given} %0 to {returns}", returns)
    if to == "f":
        return _returned(f"{'uitofp' if source == 'u' else 'sitofp'} {given} %0 to {returns}", returns)
    if source == "f":
        if elements(returns)[1] == "i1":
            return _returned(f"fcmp une {given} %0, zeroinitializer", returns)
        function = f"@llvm.fpto{'u' if to == 'u' else 's'}i.sat.{suffix(returns)}.{suffix(given)}"
        return _returned(f"call {returns} {function}({given} %0)", returns, [f"declare {returns} {function}({given})"])
    how = "trunc" if wide > narrow else "zext" if source == "u" else "sext"
    return Body([f"ret {returns} %0"], []) if wide == narrow else _returned(f"{how} {given} %0 to {returns}", returns)


def _atomic(name: str, returns: str, args: list[str]) -> Body:
    """air.atomic.(global|local).OP.[us.]TYPE(pointer, value, order, scope, ...)."""
    parts = name.split(".")
    operation, sign = parts[3], "s" if "s" in parts[4:] else "u"
    size = {"float": 4}.get(args[1] if len(args) > 1 else returns, 4)
    if operation == "load":
        return _returned(f"load atomic {returns}, ptr %0 monotonic, align {size}", returns)
    if operation == "store":
        return Body([f"store atomic {args[1]} %1, ptr %0 monotonic, align {size}", "ret void"], [])
    if operation == "cmpxchg" and operation in parts:
        kind = args[2]
        lines = [
            f"%e = load {kind}, ptr %1",
            f"%p = cmpxchg ptr %0, {kind} %e, {kind} %2 monotonic monotonic",
            f"%o = extractvalue {{{kind}, i1}} %p, 0",
            f"store {kind} %o, ptr %1",
            f"ret {returns} %o" if returns == kind else f"%r = extractvalue {{{kind}, i1}} %p, 1\n ret i1 %r",
        ]
        return Body(lines, [])
    if operation in ("max", "min"):
        operation = operation if sign == "s" else f"u{operation}"
    elif operation in ATOMICS:
        operation = "fadd" if args[1] == "float" and operation == "add" else ATOMICS[operation]
    else:
        raise UnknownInAir(f"{name}({', '.join(args)})")
    return _returned(f"atomicrmw {operation} ptr %0, {args[1]} %1 monotonic", returns)


def _integer(base: str, parts: list[str], returns: str, args: list[str]) -> Body | None:
    kind = args[0] if args else ""
    if base in ("min", "max") and parts[2] in "us":
        call, declared = _llvm(parts[2] + base, kind, "%0", "%1")
        return _returned(call, returns, [declared])
    if base == "clamp" and parts[2] in "us":
        low, first = _llvm(parts[2] + "max", kind, "%0", "%1")
        high, second = _llvm(parts[2] + "min", kind, "%m", "%2")
        return _returned(high, returns, [first, second], [f"%m = {low}"])
    if base == "abs":
        call, declared = _llvm("smax", kind, "%0", "%n")
        return _returned(call, returns, [declared], [f"%n = sub {kind} zeroinitializer, %0"])
    if base in BITS:
        flag = ", i1 false" if base in ("clz", "ctz") else ""
        name = f"@llvm.{BITS[base]}.{suffix(kind)}"
        declared = f"declare {kind} {name}({kind}{', i1' if flag else ''})"
        return _returned(f"call {kind} {name}({kind} %0{flag})", returns, [declared])
    return None


def _floating(base: str, parts: list[str], returns: str, args: list[str]) -> Body | None:
    if base in ROUNDING or base == "sqrt":
        call, declared = _llvm(ROUNDING.get(base, base), returns, "%0")
    elif base == "fma":
        call, declared = _llvm("fma", returns, "%0", "%1", "%2")
    else:
        return None
    return _returned(call, returns, [declared])


def _cpp_type(llvm_type: str, sign: str) -> str:
    """The prelude's type of a value; `sign` is 's' for signed integers."""
    count, element = elements(llvm_type)
    name = SIGNED.get(element, CPP[element]) if sign == "s" else CPP[element]
    return f"metal::vec<{name}, {count}>" if count > 1 else name


def _called(name: str, returns: str, args: list[str], collective: bool, cpp: str) -> Body:
    """IR that passes all values by address to a function of glue.cpp."""
    first = 1 if collective else 0
    lines, given = [], []
    if returns != "void":
        lines.append(f"%o = alloca {returns}")
        if returns.startswith("<64"):  # of a matrix, two elements are a lane's
            lines.append(f"store {returns} zeroinitializer, ptr %o")
        given.append("ptr %o")
    for number, kind in enumerate(args, first):
        lines += [f"%a{number} = alloca {kind}", f"store {kind} %{number}, ptr %a{number}"]
        given.append(f"ptr %a{number}")
    if collective:
        given.append("i32 %0")
    lines.append(f"call void @{symbol(name)}({', '.join(given)})")
    lines += ["ret void"] if returns == "void" else [f"%r = load {returns}, ptr %o", f"ret {returns} %r"]
    declared = f"declare void @{symbol(name)}({', '.join(value.split()[0] for value in given)})"
    return Body(lines, [declared], cpp)


def _matrix(name: str, what: str, returns: str, args: list[str]) -> Body:
    if what == "init_filled":
        element = elements(returns)[1]
        first = f"%a = insertelement {returns} zeroinitializer, {element} %0, i32 0"
        return _returned(f"insertelement {returns} %a, {element} %0, i32 1", returns, None, [first])
    kinds = [f"metal::vec<{CPP[elements(kind)[1]]}, 2>" for kind in (returns, *args) if kind.startswith("<64")]
    if what == "multiply_accumulate":
        d, a, b, c = kinds
        cpp = f"""AIR {symbol(name)}({d}* d, const {a}* a, const {b}* b, const {c}* c, int site) {{
  const msl_::Pair r = msl_::multiply_accumulate(*a, *b, msl_::to_pair(*c), site);
  *d = {d}(r.x, r.y);
}}"""
        return _called(name, returns, args, True, cpp)
    if what in ("load", "store") and args[-3:] == ["i64", "<2 x i64>", "i1"]:
        matrix = f"metal::simdgroup_matrix<{CPP[elements(returns if what == 'load' else args[0])[1]]}, 8, 8>"
        vector = kinds[0]
        element = vector[len("metal::vec<") : -len(", 2>")]
        tail = "ulong* stride, metal::ulong2* origin, bool* transpose, int"
        if what == "load":
            cpp = f"""AIR {symbol(name)}({vector}* d, const {element}** from, {tail}) {{
  {matrix} m;
  metal::simdgroup_load(m, *from, *stride, *origin, *transpose);
  *d = m.elements;
}}"""
        else:
            cpp = f"""AIR {symbol(name)}(const {vector}* d, {element}** to, {tail}) {{
  {matrix} m;
  m.elements = *d;
  metal::simdgroup_store(m, *to, *stride, *origin, *transpose);
}}"""
        return _called(name, returns, args, True, cpp)
    raise UnknownInAir(f"{name}({', '.join(args)})")


def _tensors(name: str, returns: str, args: list[str]) -> Body:
    """A product of matrices in registers (tensors.h): size and places of a lane's elements, and the product."""
    what = name.removeprefix(TENSORS)
    given = {"ptr": "void**", "i64": "int64_t*", "i32": "int*", "i16": "uint16_t*", "i8": "uint8_t*"}
    parameters = ", ".join(f"{given[kind]} a{number}" for number, kind in enumerate(args))
    if what == "cooperative_tensor_init":
        return Body(["ret void"], [])
    if what == "cooperative_tensor_data_size":
        call = "air_tensors::bytes(*a0, *a1, *a2, *a3, *a8, *a10)"
        cpp = f"AIR {symbol(name)}(int64_t* r, {parameters}) {{ *r = {call}; }}"
        return _called(name, returns, args, False, cpp)
    if what == "cooperative_tensor_get_element_pointer":
        cpp = f"AIR {symbol(name)}(void** r, {parameters}) {{ *r = air_tensors::element(*a8, *a9, *a0, *a10, *a12); }}"
        return _called(name, returns, args, False, cpp)
    if found := re.fullmatch(r"run_cooperative_(\w+)_(\w+)_(\w+)", what):
        types = ", ".join(SHORT[kind] for kind in found.groups())
        call = f"air_tensors::run<{types}>(*a0, *a1, *a2, *a3, site)"
        return _called(name, returns, args, True, f"AIR {symbol(name)}({parameters}, int site) {{ {call}; }}")
    raise UnknownInAir(f"{name}({', '.join(args)})")


def _prelude(name: str, base: str, parts: list[str], returns: str, args: list[str]) -> Body:
    """A call of the prelude's function of the same name."""
    if any("ptr" in kind for kind in (returns, *args)):
        raise UnknownInAir(f"{name} {returns}({', '.join(args)})")
    collective, sign = is_collective(name), parts[2] if len(parts) > 2 else ""
    collective_first = [f"const {_cpp_type(kind, sign)}* a{number}" for number, kind in enumerate(args)]
    site = ["int site"] if collective else []
    function = "metal::" + parts[1].replace("fast_", "fast::").replace("precise_", "precise::")
    values = [f"*a{number}" for number in range(len(args))] + (["site"] if collective else [])
    out = _cpp_type(returns, sign)
    call = f"{function}({', '.join(values)})"
    if base.endswith("ballot") or base.endswith("active_threads_mask"):
        call = f"{call}.votes"
    parameters = ", ".join([f"{out}* r", *collective_first, *site])
    cpp = f"AIR {symbol(name)}({parameters}) {{ *r = {call}; }}"
    return _called(name, returns, args, collective, cpp)
