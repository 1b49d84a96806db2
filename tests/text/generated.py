"""Chat templates made at random, of right types so that most of them get far, which make much out of little.

    python -m tests.text.generated SEED SECONDS

renders them for that long, and says which took more than a second and a half of CPU time or 128 MiB.
"""

from __future__ import annotations

import collections
import random
import resource
import sys
import time
from collections.abc import Callable

from jinja2.exceptions import TemplateError

from torch_foundry.io import LoadError
from torch_foundry.text import render

MESSAGES = [{"role": "user", "content": "hello there"}]
INTEGERS = ["0", "1", "2", "7", "40", "255", "999", "1000", "1001", "99999", "10**9", "i", "n.i", "-1", "2**63"]
TEXTS = ["n.s", "n.s", "n.t", "'a'", "'ab cd\\n'", "''", "messages[0].content", "'\\x00\\U0001f600ß'", "'a,b,c'"]
LISTS = ["n.l", "n.l", "[1, 2]", "[n.s]", "[n.l, n.l]", "(n.l, n.s)", "messages", "(range(9)|list)", "[n.s, n.t]"]
DICTS = ["n.d", "messages[0]", "{}"]
FILTERS = ["upper", "lower", "title", "capitalize", "trim", "string", "escape", "forceescape", "safe", "reverse"]
SLICES = ["1:", ":-1", "::-1", "::2"]


class Maker:
    """Expressions by type, nested at most four deep."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def one_of(self, leaves: list[str], depth: int, *ways: Callable[[], str]) -> str:
        return self.rng.choice(leaves) if depth > 3 or self.rng.random() < 0.15 else self.rng.choice(ways)()

    def integer(self, d: int = 2) -> str:
        r, i, t, v = self.rng, lambda: self.integer(d + 1), lambda: self.text(d + 1), lambda: self.list(d + 1)
        return self.one_of(
            INTEGERS,
            d,
            lambda: f"({i()} {r.choice(['+', '-', '*', '//', '%', '**'])} {i()})",
            lambda: f"({r.choice((t, v))()}|length)",
            lambda: f"{t()}.{r.choice(('find', 'count', 'rfind'))}({t()})",
            lambda: f"{v()}.count({t()})",
            lambda: f"({t()}|int)",
            lambda: f"({v()}|map('length')|sum)",
        )

    def text(self, d: int = 0) -> str:
        r, i, t, v = self.rng, lambda: self.integer(d + 1), lambda: self.text(d + 1), lambda: self.list(d + 1)
        any_of = lambda: r.choice((self.integer, self.text, self.list, self.dict))(d + 1)  # noqa: E731
        return self.one_of(
            TEXTS,
            d,
            lambda: f"({t()} {r.choice('+~')} {t()})",
            lambda: f"({t()} {r.choice('+~')} {t()})",
            lambda: f"({t()} * {i()})",
            lambda: f"({t()}|replace({t()}, {t()}))",
            lambda: f"{t()}.replace({t()}, {t()})",
            lambda: f"({v()}|join({t()}))",
            lambda: f"{t()}.join({v()}|map('string'))",
            lambda: f"({t()}|{r.choice(FILTERS)})",
            lambda: f"({t()}|indent({r.choice((i, t))()}, true, true))",
            lambda: f"({t()}|center({i()}))",
            lambda: f"{t()}.{r.choice(('ljust', 'rjust', 'center', 'zfill'))}({i()})",
            lambda: f"({any_of()}|tojson)",
            lambda: f"({any_of()}|tojson(indent={i()}))",
            lambda: f"({any_of()}|string)",
            lambda: f"{t()}[{r.choice(SLICES)}]",
            lambda: f"('{r.choice(('%s%s', '%r%s', '%-9s%s', '%999s%s'))}' % ({any_of()}, {t()}))",
            lambda: f"(({t()} * 9 ~ '%(a)s') % {{'a': {t()}}})",
            lambda: f"'{{}}{{:>900}}{{}}'.format({t()}, {i()}, {t()})",
            lambda: f"({t()}|truncate({i()}, true, {t()}, 0))",
            lambda: f"f({t()})",
            lambda: f"({t()}|format({t()}, {t()}))",
            lambda: f"({v()}|{r.choice(('first', 'last', 'min', 'max'))}|string)",
        )

    def list(self, d: int = 0) -> str:
        r, i, t, v = self.rng, lambda: self.integer(d + 1), lambda: self.text(d + 1), lambda: self.list(d + 1)
        any_of = lambda: r.choice((self.integer, self.text, self.list, self.dict))(d + 1)  # noqa: E731
        return self.one_of(
            LISTS,
            d,
            lambda: f"({v()} + {v()})",
            lambda: f"({v()} * {i()})",
            lambda: f"{t()}.{r.choice(('split', 'rsplit'))}({t()} or 'a')",
            lambda: f"{t()}.{r.choice(('split', 'splitlines'))}()",
            lambda: f"({t()}|list)",
            lambda: f"[{', '.join(any_of() for _ in range(r.randint(0, 4)))}]",
            lambda: (
                f"({v()}|map('string')|{r.choice(('sort', 'unique|list', 'list', 'sort(reverse=true)', 'select'))})"
            ),
            lambda: f"({v()}|{r.choice(('list', 'reverse|list', 'unique|list', 'select|list', 'reject|list'))})",
            lambda: f"({v()}|map('{r.choice(('tojson', 'string', 'length', 'list'))}')|list)",
            lambda: f"({v()}|batch({i()}, {t()})|list)",
            lambda: f"({v()}|slice({i()})|list)",
            lambda: f"{v()}[{r.choice(SLICES)}]",
            lambda: f"(range({i()})|list)",
            lambda: f"({self.dict(d + 1)}|{r.choice(('items|list', 'dictsort', 'list'))})",
            lambda: f"({v()}|map('replace', {t()}, {t()})|list)",
            lambda: f"({v()}|map('join', {t()})|list)",
        )

    def dict(self, d: int = 0) -> str:
        pair = lambda: f"{self.text(d + 1)}: {self.rng.choice((self.text, self.list, self.dict))(d + 1)}"  # noqa: E731
        return self.one_of(
            DICTS,
            d,
            lambda: "{" + ", ".join(pair() for _ in range(self.rng.randint(1, 3))) + "}",
            lambda: f"dict({self.dict(d + 1)}, k={self.text(d + 1)})",
        )

    def test(self) -> str:
        kind = self.rng.choice((self.text, self.list, self.integer, self.dict))
        return f"({kind(1)} {'==' if kind == self.dict else self.rng.choice(('==', '!=', '<'))} {kind(1)})"

    def assignment(self) -> str:
        of = {"s": self.text, "t": self.text, "l": self.list, "i": self.integer, "d": self.dict}
        name = self.rng.choice("sstlllid")
        return f"{{% set n.{name} = {of[name]()} %}}"

    def statement(self, d: int = 0) -> str:
        body = lambda: self.statement(d + 1)  # noqa: E731
        ways: list[Callable[[], str]] = [
            self.assignment,
            self.assignment,
            lambda: f"{{{{ {self.rng.choice((self.text, self.list, self.dict))()} }}}}",
            lambda: f"{{% macro f(a) %}}{self.assignment()}{{{{ a }}}}{{{{ a }}}}{{% endmacro %}}",
        ]
        if d < 3:
            ways += [lambda: self.loop(d), lambda: self.loop(d), lambda: self.block(body), lambda: self.choice(body)]
        return self.rng.choice(ways)()

    def loop(self, d: int) -> str:
        body = "".join(self.statement(d + 1) for _ in range(self.rng.randint(1, 2)))
        return f"{{% for i in range({self.rng.choice((9, 40, 40, 1000, 99999))}) %}}{body}{{% endfor %}}"

    def block(self, body: Callable[[], str]) -> str:
        return f"{{% set q %}}{body()}{{{{ n.s }}}}{{{{ n.t }}}}{{% endset %}}{{% set n.s = q %}}"

    def choice(self, body: Callable[[], str]) -> str:
        return f"{{% if {self.test()} %}}{body()}{{% else %}}{body()}{{% endif %}}"


def template(seed: int) -> str:
    rng = random.Random(seed)
    maker = Maker(rng)
    size = rng.choice((1, 9, 1000, 100_000, 2_000_000))
    first = (
        f"{{% set i = 3 %}}{{% set n = namespace(s='ab' * {size}, t='a' * 9, i=2, l=['b'], d={{'k': ['1', '2']}}) %}}"
    )
    macro = "{% macro f(a) %}{{ a }}{% endmacro %}"
    return first + macro + "".join(maker.statement() for _ in range(rng.randint(1, 6)))


def outcome(source: str) -> str:
    """What rendering it comes to: "text", or the code of what it is refused with."""
    try:
        render(source, MESSAGES)
    except LoadError as fault:
        return fault.code
    except TemplateError:
        return "refusal"
    return "text"


def peak() -> float:
    """MiB that this process has had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def main(seed: int, seconds: float) -> None:
    counts: collections.Counter[str] = collections.Counter()
    end, begin, longest = time.monotonic() + seconds, peak(), 0.0
    while time.monotonic() < end:
        seed += 1
        source = template(seed)
        memory, used = peak(), time.thread_time()
        counts[outcome(source)] += 1
        used, memory = time.thread_time() - used, peak() - memory
        longest = max(longest, used)
        if used > 1.5 or memory > 128:
            print(f"seed {seed}: {used:.2f} s, {memory:.0f} MiB\n{source}")
    print(f"{sum(counts.values())} templates: {dict(counts)}; at most {longest:.2f} s, {peak() - begin:.0f} MiB in all")


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
