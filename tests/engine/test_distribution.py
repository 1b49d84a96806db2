"""Texts that are drawn with drafts have the model's distribution, by chi-square against all that there can be."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch

from tests.engine.test_drafting import similar, steps_take_as_long  # noqa: F401
from tests.engine.test_engine import drain, patched
from tests.generation.test_speculation import never_switched_off  # noqa: F401
from tests.hf.tiny_models import ids, shared
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.generation.drafting import PromptLookup
from torch_foundry.hf.api import report

pytestmark = [
    pytest.mark.tier("models"),
    pytest.mark.usefixtures("quiet", "steps_take_as_long", "never_switched_off"),
]
PROMPT = ids(1, 20)[0].tolist()
TOKENS, KEPT, SEEDS = 4, 3, 1200


@pytest.fixture(scope="module")
def exact() -> dict[tuple[int, ...], float]:
    """The probability of each text of TOKENS tokens behind PROMPT, each token one of the KEPT likeliest."""
    found: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(TOKENS):
        with torch.no_grad():
            logits = shared("llama")(torch.tensor([[*PROMPT, *text] for text in found])).logits[:, -1].double()
        scores, tokens = (2 * logits).topk(KEPT)  # temperature 0.5
        found = {
            (*text, int(token)): p * float(q)
            for (text, p), row, qs in zip(found.items(), tokens, scores.softmax(-1), strict=True)
            for token, q in zip(row, qs, strict=True)
        }
    return found


@pytest.fixture
def options(
    request: pytest.FixtureRequest, exact: dict[tuple[int, ...], float], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """For an engine or generate(). Lookup would find nothing here: what it finds is some text that there can be."""
    if request.param == "draft":
        return {"assistant_model": similar("llama")}
    texts = sorted(exact)

    def propose(self: Any, text: list[int], most: int, end: int | None = None) -> tuple[int, list[int]]:
        new = tuple(text[len(PROMPT) : end])
        ways = [known for known in texts if known[: len(new)] == new]
        found = list(ways[sum(new) % len(ways)][len(new) : len(new) + most]) if ways else []
        return len(found) > 0, found

    monkeypatch.setattr(PromptLookup, "propose", propose)
    return {"prompt_lookup_num_tokens": 3}


def check(texts: list[list[int]], exact: dict[tuple[int, ...], float]) -> None:
    """Chi-square with rare texts put together; a true distribution is above the limit once in 10,000 times."""
    seen = Counter(map(tuple, texts))
    assert seen.keys() <= exact.keys()
    often = {text: p * len(texts) for text, p in exact.items() if p * len(texts) >= 5}
    cells = [(seen[text], n) for text, n in often.items()]
    if len(often) < len(exact):
        cells.append((len(texts) - sum(s for s, _ in cells), len(texts) - sum(often.values())))
    statistic, freedom = sum((s - n) ** 2 / n for s, n in cells), len(cells) - 1
    spread = 2 / (9 * freedom)
    limit = freedom * (1 - spread + 3.72 * math.sqrt(spread)) ** 3  # Wilson and Hilferty, 1931
    assert freedom > 10 and statistic < limit, (statistic, freedom)


@pytest.mark.parametrize("options", ["lookup", "draft"], indirect=True)
def test_an_engines_texts(options: dict[str, Any], exact: dict[tuple[int, ...], float]) -> None:
    engine = Engine(patched(), requests=16, queue=SEEDS, **options)
    asked = {"max_tokens": TOKENS, "temperature": 0.5, "top_k": KEPT}
    streams = [engine.submit(PROMPT, SamplingParams(seed=seed, **asked)) for seed in range(SEEDS)]  # type: ignore[arg-type]
    drain(engine)
    check([stream.tokens for stream in streams], exact)
    assert SEEDS / 10 < engine.speculation.accepted < engine.speculation.drafted, str(engine.speculation)


@pytest.mark.parametrize("options", ["lookup", "draft"], indirect=True)
def test_generates_texts(options: dict[str, Any], exact: dict[tuple[int, ...], float]) -> None:
    model, texts, prompt = patched(), [], torch.tensor([PROMPT])
    for seed in range(SEEDS // 4):
        torch.manual_seed(seed)
        found = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            temperature=0.5,
            top_k=KEPT,
            max_new_tokens=TOKENS,
            **options,
        )
        texts.append(found[0, len(PROMPT) :].tolist())
    check(texts, exact)
    assert SEEDS / 20 < report(model).speculation.accepted < report(model).speculation.drafted
