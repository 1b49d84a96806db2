"""Tokens: kinds, bracket partners, template brackets, places."""

from __future__ import annotations

import pytest

from tests.msl.effort import lines_run
from torch_foundry.msl import MslError
from torch_foundry.msl.rewrite.qualifiers import literal
from torch_foundry.msl.syntax.lexer import Tokens


def test_kinds_and_text():
    tokens = Tokens('x = 1.5e-3h + a->b[0x1p-3f]; "s\\"t" \'c\' >>= ...')
    assert tokens.text[:4] == ["x", "=", "1.5e-3h", "+"]
    assert tokens.kind[:4] == ["id", "op", "num", "op"]
    assert "0x1p-3f" in tokens.text and '"s\\"t"' in tokens.text and "..." in tokens.text
    assert tokens.text[-3:] == [">", ">=", "..."]  # `>>` is two template brackets


def test_text_comes_back_with_its_line_markers():
    source = '# 1 "a.metal"\nint a;\n#pragma unroll\n#pragma mark d\n# 7 "b.h" 1 3\nint b; /* c */ int c;\n'
    tokens = Tokens(source)
    text = "".join(lead + t for lead, t in zip(tokens.lead, tokens.text, strict=True)) + tokens.tail
    assert text == '# 1 "a.metal"\nint a;\n#pragma unroll\n\n# 7 "b.h"\nint b; /* c */ int c;\n'
    assert tokens.where(tokens.text.index("a")) == ("a.metal", 1)
    assert tokens.where(tokens.text.index("b")) == ("b.h", 7)


def test_brackets_match():
    tokens = Tokens("f(a[b(1)], {2})")
    assert tokens.match[1] == len(tokens) - 1
    assert tokens.text[tokens.match[tokens.text.index("[")]] == "]"


@pytest.mark.parametrize(
    ("source", "message"), [("\n(]", "x.metal:2: unbalanced ']'"), ("{\n(", "x.metal:2: '(' is never")]
)
def test_unbalanced_brackets_are_named(source, message):
    with pytest.raises(MslError, match=message.replace("(", r"\(").replace("]", r"\]")):
        Tokens(source, "x.metal")


@pytest.mark.parametrize(
    ("source", "close"),
    [
        ("f<int, g<4>>(x)", 8),
        ("f<(a > b), 1>(x)", 9),
        ("t<enable_if_t<sizeof(T) < 8, bool> = true>", 15),
        ("a < b; c > d", -1),
    ],
)
def test_template_brackets(source, close):
    tokens = Tokens(source)
    assert tokens.angle(1) == close
    if close > 0:
        assert tokens.angle_back(close) == 1


def test_attributes_are_not_subscripts():
    tokens = Tokens("a[b[1]] [[buffer(0)]]")
    found = [i for i in range(len(tokens)) if tokens.text[i] == "[" and tokens.is_attribute(i)]
    assert len(found) == 1 and tokens.text[found[0] + 2] == "buffer"


@pytest.mark.parametrize(
    ("metal", "cpp"),
    [
        ("1.0", "1.0f"),
        ("2.", "2.f"),
        (".5", ".5f"),
        ("1e-3", "1e-3f"),
        ("0x1p-3", "0x1p-3f"),
        ("1.5f", "1.5f"),
        ("1.5h", "half(1.5f)"),
        ("2h", "half(2.0f)"),
        ("0x1.ffcp15h", "half(0x1.ffcp15f)"),
        ("1.5bf", "bfloat(1.5f)"),
        ("10", "10"),
        ("0x1E", "0x1E"),
        ("0xbf", "0xbf"),
        ("7ul", "7ul"),
        ("1'000", "1'000"),
    ],
)
def test_literals(metal, cpp):
    assert literal(metal) == cpp


def test_work_is_linear():
    line = "kernel void f(device T* x [[buffer(0)]]) { x[a<b>(1)] = {1, 2}; }\n"
    assert lines_run(lambda: Tokens(line * 800)) < 9 * lines_run(lambda: Tokens(line * 100))
