"""The corpus: reproducible, held-out text apart, nothing left of the grammar, sums that are right."""

from __future__ import annotations

import random
import re
import subprocess
import sys

import numpy as np
import pytest

from tools.demo_model.corpus import BOS, EOS, SPECIAL_TOKENS, documents
from tools.demo_model.corpus.grammar import expand, parse, polish
from tools.demo_model.corpus.plots import PLOTS
from tools.demo_model.corpus.story import Story
from tools.demo_model.train import CONTEXT, pack


def test_a_document_depends_on_its_number_only() -> None:
    assert list(documents("train", 10, 20)) == list(documents("train", 0, 30))[10:20]
    assert list(documents("train", 0, 5, seed=1)) != list(documents("train", 0, 5, seed=2))


def test_held_out_text_is_not_in_the_training_text() -> None:
    train = set(documents("train", 0, 3000))
    assert not [text for text in documents("heldout", 0, 48) if len(text) > 200 and text in train]


def test_documents_are_framed_and_fully_expanded() -> None:
    for text in documents("train", 0, 2000):
        assert text.startswith(BOS) and text.endswith(EOS)
        plain = text
        for token in SPECIAL_TOKENS:
            plain = plain.replace(token, "")
        if not re.search("repeat|Say this", plain, re.IGNORECASE):  # these copy random characters
            assert not re.search(r"[{}\[\]|]", plain), plain
            assert "  " not in plain, plain


def test_sums_are_right() -> None:
    found = 0
    for text in documents("train", 0, 4000):
        for a, sign, b, result in re.findall(r"(?<![\d-])(\d+) ([-+x]) (\d+) = (\d+)", text):
            found += 1
            assert {"+": int(a) + int(b), "-": int(a) - int(b), "x": int(a) * int(b)}[sign] == int(result), text
    assert found > 100


@pytest.mark.parametrize("plot", sorted(set(PLOTS), key=lambda f: f.__name__), ids=lambda f: f.__name__)
def test_every_plot_tells_a_story_with_questions(plot: object) -> None:
    assert callable(plot)
    bodies = set()
    for seed in range(40):
        story = Story(random.Random(seed))
        plot(story)
        body = story.body()
        bodies.add(body)
        assert story.title and story.topic and len(story.questions) >= 4
        assert 300 < len(body) < 2500
        assert str(story.scope["hero"]) in body
        assert all(q.rstrip().endswith("?") and a[0].isupper() for q, a in story.questions), story.questions
    assert len(bodies) == 40


def test_grammar() -> None:
    rng = random.Random(0)
    texts = {polish(expand("[a|the] {x} [sat|[ran|hid] away].", rng, {"x": "owl"})) for _ in range(100)}
    assert texts == {f"{a} owl {v}." for a in ("An", "The") for v in ("sat", "ran away", "hid away")}
    for broken in ("[a|b", "a]b [c"):
        with pytest.raises(ValueError, match="unbalanced"):
            parse(broken)


def test_rows_begin_with_a_document() -> None:
    texts = [np.arange(1, n + 1, dtype=np.uint16) for n in (300, 700, 900, 80, 2000, 5)]
    rows = pack(texts, pad=0)
    assert rows.shape[1] == CONTEXT and (rows[:, 0] == 1).all()
    assert (rows != 0).sum() >= sum(min(len(t), CONTEXT) for t in texts) - CONTEXT // 16


def test_command_line() -> None:
    command = [sys.executable, "-m", "tools.demo_model.corpus", "--bytes", "20000"]
    text = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    assert 20_000 <= len(text) < 30_000 and text.startswith(BOS.encode())
