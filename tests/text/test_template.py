"""Chat templates: benign ones as transformers renders them, hostile ones refused within their budget."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from tests.text import hostile, templates
from torch_foundry.core.load_errors import LoadError
from torch_foundry.text import check_template, render
from torch_foundry.text.budget import OUTPUT
from torch_foundry.text.template import SOURCE, TOKENS

TOKENS_OF = {"bos_token": "<s>", "eos_token": "</s>"}
CHATS = templates.CHATS


@pytest.mark.parametrize("name", templates.BENIGN)
def test_rendered_as_transformers_does(name: str) -> None:
    template, texts = templates.BENIGN[name], set()
    check_template(template, "model.gguf")
    choices = (CHATS.values(), (None, templates.TOOLS), (None, templates.DOCUMENTS), (False, True))
    for chat, tools, documents, prompt in product(*choices):
        variables: dict[str, Any] = {
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": prompt,
            **TOKENS_OF,
        }
        variables |= {"enable_thinking": False, "controls": {"length": "short"}} if prompt else {}
        try:
            want = render_jinja_template([chat], chat_template=template, **variables)[0][0]
        except TemplateError as refusal:
            with pytest.raises(TemplateError, match=str(refusal)):
                render(template, chat, **variables)
        else:
            assert render(template, chat, **variables) == want
            texts.add(want)
    assert len(texts) > 1


@pytest.mark.parametrize("name", hostile.HOSTILE)
def test_refused(name: str) -> None:
    code, template = hostile.HOSTILE[name]
    with pytest.raises(LoadError) as caught:
        check_template(template, "bad.gguf")
    assert (caught.value.code, caught.value.file) == (code, "bad.gguf"), caught.value
    assert caught.value.field == "tokenizer.chat_template" and len(str(caught.value)) < 1000


IN_A_PROCESS = """
import collections, json, resource, sys, time
from tests.text import generated, hostile
from torch_foundry.text import check_template
from torch_foundry.core.load_errors import LoadError
mib = 1 << 20 if sys.platform == "darwin" else 1 << 10
seconds = {}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for name, (code, template) in hostile.HOSTILE.items():
    used = resource.getrusage(resource.RUSAGE_SELF)
    try:
        check_template(template, "bad.gguf")
    except LoadError:
        after = resource.getrusage(resource.RUSAGE_SELF)
        seconds[name] = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
outcomes = collections.Counter()
for seed in range(60):
    used = time.thread_time()
    outcomes[generated.outcome(generated.template(seed))] += 1
    seconds[seed] = time.thread_time() - used
print(json.dumps([seconds, outcomes, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / mib]))
"""


@pytest.mark.tier("files")
def test_hostile_templates_cost_little() -> None:
    """CPU seconds, each, and memory of all together, in MiB; of templates made at random too."""
    command = [sys.executable, "-W", "ignore", "-c", IN_A_PROCESS]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    seconds, outcomes, mib = json.loads(done.stdout)
    assert set(seconds) == {*hostile.HOSTILE, *map(str, range(60))}
    assert set(outcomes) >= {"text", "TMPL_BUDGET"}
    assert max(seconds.values()) < 2, max(seconds, key=seconds.get)
    assert mib < 256


def test_long_conversations_have_a_longer_budget() -> None:
    """Their text alone is past what a short conversation may print."""
    chat = [{"role": "user", "content": "word " * 999}, {"role": "assistant", "content": "yes " * 999}] * 150
    want = render_jinja_template([chat], chat_template=templates.BENIGN["chatml"], **TOKENS_OF)[0][0]
    assert len(want) > OUTPUT
    assert render(templates.BENIGN["chatml"], chat, **TOKENS_OF) == want


def test_many_short_messages_end_within_the_budget() -> None:
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 1000
    for name in ("chatml with tools", "llama 3", "gemma"):
        want = render_jinja_template([chat], chat_template=templates.BENIGN[name], **TOKENS_OF)[0][0]
        assert render(templates.BENIGN[name], chat, tools=None, **TOKENS_OF) == want


@pytest.mark.parametrize("source", ["x" * (SOURCE + 1), "{{a}}" * TOKENS, "{{ a" + " and a" * 500 + " }}"])
def test_sources_are_small(source: str) -> None:
    with pytest.raises(LoadError, match="TMPL_BUDGET"):
        render(source, CHATS["one"])


def test_a_template_that_refuses_all_messages_may_be_loaded_and_says_so() -> None:
    template = "{{ raise_exception('Only ' ~ 'translations') }}"
    check_template(template, "model.gguf")
    with pytest.raises(TemplateError, match="Only translations"):
        render(template, CHATS["one"])


def test_templates_for_parts_of_messages() -> None:
    """Those of models that see take lists of parts and know no plain text."""
    check_template("{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}", "model.gguf")


def test_templates_that_look_at_more_messages_than_one() -> None:
    check_template(
        "{{ messages[1].role.upper() }}{{ messages[2].role.upper() }}{{ messages[2].content }}", "model.gguf"
    )


def test_templates_for_one_purpose_need_not_know_a_plain_chat() -> None:
    template = "{{ documents.first.text }}"
    with pytest.raises(LoadError, match="TMPL_UNDEF"):
        check_template(template, "model.gguf")
    check_template(template, "model.gguf", "tokenizer.chat_template.rag", chats=False)
    with pytest.raises(LoadError, match="TMPL_BUDGET"):
        check_template("{{ 'a' * 10**10 }}", "model.gguf", chats=False)


@pytest.mark.parametrize("name", ["range", "raise_exception", "_each", "__class__", "self", "loop", "not a name"])
def test_variables_that_would_replace_the_renderer_s_own(name: str) -> None:
    with pytest.raises(ValueError, match="can't be a variable"):
        render("{{ messages }}", CHATS["one"], **{name: 1})


class Odd(str):
    """Text with more methods than a template should see."""

    def save(self, path: str) -> None:
        Path(path).write_text(self)


@dataclass
class Message:
    role: str
    content: Any


def test_templates_see_plain_data_only(tmp_path: Path) -> None:
    file = tmp_path / "written"
    message = Message("user", Odd("text"))
    with pytest.raises(LoadError, match="TMPL_UNDEF"):
        render("{{ messages[0].content.save(" + repr(str(file)) + ") }}", [message])  # type: ignore[list-item]
    assert not file.exists()
    assert render("{{ messages[0].content }} {{ messages[0].role }}", [message]) == "text user"  # type: ignore[list-item]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": object()}]) == "<object>"


def test_templates_change_nothing_of_the_caller_s() -> None:
    chat = [{"role": "user", "content": ["a"]}]
    with pytest.raises(LoadError, match="TMPL_SANDBOX"):
        render("{{ messages[0].content.append('b') }}", chat)
    assert chat == [{"role": "user", "content": ["a"]}]


def test_dates() -> None:
    template = "{{ strftime_now('%d %B %Y, 100%%') }}"
    assert render(template, CHATS["one"]) == render_jinja_template([CHATS["one"]], chat_template=template)[0][0]
