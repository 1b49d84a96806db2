"""Small templates, one for each thing that costs or is refused: what they print, or say, and what they pay."""

from __future__ import annotations

from functools import reduce
from typing import Any

LONG = "abc" * 50
VARIABLES: dict[str, Any] = {
    "s": LONG, "t": "  spaced text\n with lines ", "n": 7, "f": 1.5, "l": [3, 1, 2], "w": ["ab", "c" * 90],
    "d": {"a": 1, "bc": "d" * 80}, "r": [{"k": 1, "v": "x"}, {"k": 2, "v": "y" * 70}], "u": None, "pad": " " * 40,
    "big": 1 << 2000,
    "deep": reduce(lambda inner, _: [inner], range(60), []),
}  # fmt: skip
FILTERS = (
    "s|upper", "s|lower", "s|title", "s|capitalize", "s|trim", "s|trim(chars='abc' * 9)", "s|center(200)",
    "s|center(9999)", "s|center('9')", "s|indent(9)", "t|indent(pad)", "s|replace('a', s)", "s|replace('b', 'x', 2)",
    "'%s and %s'|format(s, n)", "'%9s'|format(n)", "'%9999s'|format(n)", "'%*s'|format(9, n)", "'%s'|format(r)",
    "s|e", "s|escape", "s|forceescape", "s|string", "r|string", "s|safe", "s|wordcount", "s|truncate(9)", "s|length",
    "l|count", "n|abs", "n|float", "'12'|int", "('9' * 2000)|int", "f|round", "f|round(2)", "f|round(999)", "s|round",
    "big|round", "l|sum", "r|sum('k')", "w|sum(start=s)", "l|batch(2)|list", "l|batch(9999)|list", "l|slice(2)|list",
    "l|slice(9999)|list", "l|list", "s|list", "d|list", "l|first", "l|last", "l|reverse|list", "s|reverse",
    "r|map(attribute='v')|list", "l|select('odd')|list", "l|reject('odd')|list", "r|selectattr('k', 'eq', 1)|list",
    "r|rejectattr('k', 'eq', 1)|list", "d|items|list", "w|sort", "d|dictsort", "w|unique|list", "r|groupby('k')",
    "l|min", "w|max", "w|join(s)", "r|join", "l|join(',')", "u|default(s)", "d|tojson", "r|tojson(indent=4)",
    "r|tojson(indent=pad)", "r|tojson(separators=(pad, pad))", "r|tojson(indent=99)", "deep|tojson", "deep|string",
)  # fmt: skip
METHODS = (
    "s.upper()", "s.startswith('a')", "s.find(pad)", "s.removeprefix('a')", "s.center(200)", "s.ljust(9999)",
    "s.zfill('9')", "t.split()", "t.split('x')", "s.split('b')", "t.splitlines()", "s.strip('abc' * 99)",
    "t.rsplit(' ')", "s.rfind('cab' * 30)", "s.replace('a', s)", "s.replace('a', s, 2)", "s.join(w)", "', '.join(s)",
    "'{} {a}'.format(s, a=n)", "'{:9}'.format(n)", "'{:9999}'.format(n)", "'{a.b}'.format(a=n)", "'{!r}'.format(n)",
    "'{:é}'.format(n)", "'{:<<<<<<<<<<<<<<<<<}'.format(n)", "'{{}} {0}'.format(r)", "'{'.format(n)", "d.copy()",
    "d.get('bc')", "d.keys()", "d.values()", "d.items()", "l.copy()", "l.index(2)", "w.count(s)", "f.is_integer()",
    "s.encode()", "l.append(1)", "n.real", "s.format_map(d)",
)  # fmt: skip
OPERATIONS = (
    "s + s", "l + l", "l + [s]",
    "s|safe + '<' * 9", "s * 9", "l * 9", "9 * s", "l * 0", "n * n", "2**510 * 2**510 * 2**510",
    "2**2000", "big - 1", "1 - big", "big * 2", "2**-1.5", "n - 1", "n / 2", "n // 2", "n % 3", "'%s' % s",
    "'%9999s' % n", "'%s %s' % (s, s)", "s ~ n ~ r", "s == s", "w == w", "s < t", "n in l", "s in w", "s[1:9]",
    "l[1:]", "l[:0]", "w[::-1]", "[s, s]", "(s, n)", "{'a': s}", "{s: n}", "s is upper", "l is sequence", "n is odd",
    "s is odd", "big is odd", "n is divisibleby 2", "s is eq s", "n is in l", "s is none_such", "l is mapping",
    "d[s]", "d[(s, n)]", "d['bc']", "d['items']()", "d[n]", "s['upper']()", "l[0]", "r[0]['v']", "r[0].v", "nothing",
    "nothing.a", "n.__class__", "s['__class__']", "d['__init__']", "range(9)|list", "range(2**40)",
    "range(-2**40, -2**40 + 1)", "dict(a=s)", "dict(r[0])", "dict([(1, s)])", "namespace(a=s).a",
    "namespace(a=1)['a']", "namespace({'_a': 1})", "namespace({1: 1})", "namespace(a=1).nothing",
    "namespace(a=1)._Namespace__attrs", "joiner(pad)()", "strftime_now('%Y' ~ 'x' * 300)", "strftime_now('%' * 3)",
    "raise_exception(s)", "self", "__name", "_name", "lipsum()", "s()", "n(1)", "messages[0]()", "s.upper.value",
    "l.index", "s|map('upper')|list|length", "(s, s)|length", "cycler(1)", "1" + "0" * 5000, "l.sort()", "d.pop('a')",
    "s|wordwrap", "d.__class__", "s.__len__()", "range.__class__", "[deep]", "deep == deep", "{deep|length: deep}",
    "s|xmlattr", "s|none", "l|map('none_such')|list", "d|urlencode", "s|pprint", "caller()", "u + 1", "u()", "u.a",
    "1/0",
)  # fmt: skip
BLOCKS = (
    "{{ s }}", "{{ r }}", "text " * 40, "{% for x in l %}{{ x }}{% endfor %}", "{% for x in s %}{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}{% else %}none{% endfor %}", "{% for x in n %}{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}{% endfor %}", "{% for x in l|map('string') %}{{ x }}{% endfor %}",
    "{% for x in nothing %}{% endfor %}", "{% for x in l %}{{ loop.changed(x) }}{{ loop.cycle(1, 2) }}{% endfor %}",
    "{% for x in l %}{{ loop.length }}{{ loop.previtem }}{{ loop._iterator }}{% endfor %}", "{{ loop }}",
    "{% for x in l recursive %}{{ loop(l) }}{% endfor %}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(s) }}{{ m.name }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m.arguments }}", "{% macro m(a) %}{{ m(a) }}{% endmacro %}{{ m(1) }}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x{% endcall %}", "{% set x = s %}{{ x }}",
    "{% set x %}a{% endset %}{{ x }}", "{% set ns = namespace(a=1) %}{% set ns.a = s %}{{ ns.a }}",
    "{% set ns = namespace(a=1) %}{% set ns._b = s %}", "{% filter upper %}abc{% endfilter %}",
    "{% with a = 1 %}{{ a }}{% endwith %}", "{% if s is defined and n %}y{% endif %}",
    "{% generation %}abc{% endgeneration %}", "{% for x in l %}{% break %}{% endfor %}", "{{ s if n else t }}",
    "{% do n %}", "{% autoescape true %}{{ s }}{% endautoescape %}",
    "{% for x in range(9) %}{% for y in range(9) %}{% endfor %}{% endfor %}",
    "{% for x in namespace(a=1) %}{% endfor %}", "{% set self = 1 %}", "{% include 'x' %}", "{% import 'x' as y %}",
    "{% block a %}{% endblock %}", "{% extends 'x' %}", "{% from 'x' import y %}", "{% if %}", "{{ s",
    "{% trans %}x{% endtrans %}",
)  # fmt: skip
TEMPLATES = (*(f"{{{{ {expression} }}}}" for expression in (*FILTERS, *METHODS, *OPERATIONS)), *BLOCKS)


def paid(modules: Any, template: str) -> tuple[str, int, int]:
    """What it prints or how it ends, steps and text that are left. modules: of the renderer, by name."""
    means = modules["text.budget"].Budget(0)
    renderer = modules["text.template"]
    try:
        end = repr(renderer._run(renderer._compiled(template), VARIABLES, means))
    except Exception as problem:
        end = f"{type(problem).__name__}: {problem}"
    return end, means.steps, means.left_of_text
