"""Steps on graphs: bit for bit what the ops compute, whatever runs beside them, captured again when they have to be."""

from __future__ import annotations

import contextlib
import copy
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torch_foundry
from tests.engine.test_engine import GREEDY, alone, drain, patched, prompts
from tests.exact import assert_found_as_exact
from tests.hf.tiny_cases import FAMILIES
from tests.hf.tiny_models import build, ids, shared
from torch_foundry.core import runtime
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.engine import forward as forward_module
from torch_foundry.engine.forward import Forward, rows_for
from torch_foundry.engine.sequence import ScheduledSequence, Sequence
from torch_foundry.generation import step_graph
from torch_foundry.hf.api import report
from torch_foundry.models import rope

pytestmark = pytest.mark.usefixtures("quiet")
Parts = list[ScheduledSequence]


def watch(engine: Engine, see: Callable[[Parts, torch.Tensor, bool], None]) -> None:
    """Call `see` with each step's parts and logits, and whether a graph made them."""
    forward, run = engine._steps.forward, engine._steps.forward._captured
    captured: list[bool] = []

    def noted(*given: Any) -> Any:
        hidden = run(*given)
        captured.append(hidden is not None)
        return hidden

    last: Parts = []

    def seen(parts: Any, tokens: torch.Tensor | None = None) -> torch.Tensor:
        logits = forward(parts, tokens=tokens)
        if tokens is not None:  # the parts don't say which
            new = zip(parts, tokens.tolist(), strict=True)
            parts = [part_of(part.id, part.start, [token], 1) for part, token in new]
        last[:] = parts
        see(parts, logits, captured[-1])
        return logits

    def gone_on(tokens: torch.Tensor, *of: Any) -> torch.Tensor | None:
        logits = forward.go_on(tokens, *of)
        if logits is not None:
            new = tokens.tolist()
            last[:] = [part_of(p.id, p.start + 1, [new[i]], 1) for i, p in enumerate(last)]
            see(list(last), logits, True)
        return logits

    seen.go_on = gone_on  # type: ignore[attr-defined]
    forward._captured = noted  # type: ignore[method-assign]
    engine._steps.forward = seen  # type: ignore[assignment]


def part_of(id: int, start: int, ids: list[int], wanted: int) -> ScheduledSequence:
    return ScheduledSequence(Sequence([], 0, 0, id=id), start, ids, wanted)


class Often(Counter[Any]):
    """Steps with prompts, all of which are captured when they first come."""

    def __missing__(self, _: object) -> int:
        return forward_module.OFTEN


def capture_prompts(engine: Engine) -> None:
    engine._steps.forward._met, engine._steps.forward._prompts = Often(), 1000


def in_order(graphs: dict[Any, Any]) -> list[Any]:
    """The least recently used first."""
    return sorted(graphs, key=lambda key: graphs[key].used)


def pools(engine: Engine) -> list[torch.Tensor]:
    return [pool.data for layer in engine.cache.layers for pool in layer.pools]  # type: ignore[misc]


@torch.no_grad()
def again(forward: Forward, parts: Parts) -> torch.Tensor:
    """The logits of a step that was on a graph, without it: for as many rows, as torch's product depends on them."""
    step = max(forward.graphs.of(forward).values(), key=lambda graph: graph.used).inputs
    x = step.run()
    single = all(len(part.ids) == 1 for part in parts)  # those of steps ahead are not the ones that it was filled with
    logits = forward._logits(x[: len(parts)] if single else x[step.batch.tokens(parts, wanted=True)])
    if len(step.batch.ids) <= forward.plan.layers[0].layer.mixer.out.few or forward.batch_invariant:
        assert torch.equal(forward._logits(forward._eager(parts)), logits), "padding changes bits"
    return logits


def compared(engine: Engine, count: int) -> tuple[int, int]:
    """Answers `count` requests, of which every step on a graph is taken again without; returns how many there were, and
    how many of them took in prompts."""
    forward, steps = engine._steps.forward, [0, 0]
    capture_prompts(engine)

    def see(parts: Parts, logits: torch.Tensor, captured: bool) -> None:
        if captured:
            steps[any(len(part.ids) > 1 for part in parts)] += 1
            before = [p.clone() for p in pools(engine)]
            assert torch.equal(again(forward, parts), logits)
            assert all(map(torch.equal, before, pools(engine))), "keys or values differ"

    for p in pools(engine):
        p.zero_()  # memory as it comes may hold NaN
    watch(engine, see)
    for prompt in prompts(count):
        engine.submit(prompt, GREEDY)
    drain(engine)
    return steps[0] + steps[1], steps[1]


@pytest.mark.parametrize("requests", [3, 20])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_graph_is_what_the_ops_compute(family: str, requests: int) -> None:
    model = patched(family)
    steps, prompted = compared(Engine(model, requests=requests, budget=60), requests + 3)
    assert steps > 8 and prompted
    assert report(model).captured and not report(model).eager


@pytest.mark.parametrize("requests", [5, 20])
@pytest.mark.parametrize(
    "options, engine",
    [
        ({"dtype": torch.float16}, {}),
        ({"dtype": torch.bfloat16, "quantize": "q4_0"}, {}),
        ({"quantize": "q8_0"}, {"kv_cache": {"k": "q8_0", "v": "q4_0"}}),
        ({"dtype": torch.float16}, {"batch_invariant": True}),
    ],
    ids=str,
)
def test_formats(options: dict[str, Any], engine: dict[str, Any], requests: int) -> None:
    options = dict(options)
    fmt = options.pop("quantize", None)
    model = torch_foundry.patch(build("qwen2", **options), quantize=fmt)
    steps, prompted = compared(Engine(model, requests=requests, budget=60, **engine), requests)
    assert steps > 8 and prompted


@pytest.mark.parametrize("count", [1, 3, 6, 18])
def test_only_the_new_tokens_are_written(count: int) -> None:
    """Padding writes nowhere: of all blocks, only the rows of the step's tokens change."""
    model = patched()
    engine = Engine(model, requests=32, budget=64, blocks=80)
    size, steps = engine.cache.manager.block_size, [0]
    before: list[torch.Tensor] = []

    def see(parts: Parts, logits: torch.Tensor, captured: bool) -> None:
        if captured and before:
            steps[0] += 1
            for old, new in zip(before, pools(engine), strict=True):
                for part in parts:
                    block = engine.cache.manager.table(part.id)[part.start // size]
                    row = new[block, :, part.start % size]
                    assert not torch.equal(old[block, :, part.start % size], row)
                    old[block, :, part.start % size] = row
                assert torch.equal(old, new)
        before[:] = [p.clone() for p in pools(engine)]

    for p in pools(engine):
        p.fill_(7.0)
    watch(engine, see)
    for prompt in prompts(count):
        engine.submit(prompt, GREEDY)
    drain(engine)
    assert steps[0] > 8


def test_invariance_of_more_requests_than_fused_kernels_are_made_for() -> None:
    model = torch_foundry.patch(build("llama", dtype=torch.float16))
    given = prompts(20)
    found: list[dict[Any, list[torch.Tensor]]] = []
    for requests in (1, 20):
        engine = Engine(model, requests=requests, budget=120, batch_invariant=True)
        if requests > 1:
            capture_prompts(engine)
        rows: dict[Any, list[torch.Tensor]] = {}

        def see(parts: Parts, logits: torch.Tensor, captured: bool, rows: Any = rows) -> None:
            at = 0
            for part in parts:
                if part.wanted:
                    rows.setdefault(part.id, []).append(logits[at].clone())
                    at += part.wanted

        watch(engine, see)
        for prompt in given:
            engine.submit(prompt, GREEDY)
        drain(engine)
        found.append(rows)
    for name, rows in found[0].items():
        assert len(rows) >= 14 and all(map(torch.equal, rows[:14], found[1][name])), f"request {name}"


def test_numbers_of_rows() -> None:
    assert [rows_for(n, 40) for n in (1, 2, 3, 5, 9, 16, 17, 32, 33, 40)] == [1, 2, 4, 8, 16, 16, 32, 32, 40, 40]
    assert rows_for(5, 6) == 6


def test_graphs_are_few() -> None:
    """As many as there are numbers of rows and of pieces, whatever comes and goes."""
    model = patched()
    engine = Engine(model, requests=8)
    capture_prompts(engine)
    for count in (1, 2, 3, 5, 8, 7, 4, 1, 6):
        for prompt in prompts(count):
            engine.submit(prompt, GREEDY)
        drain(engine)
    found = list(engine._steps.forward.graphs.of(engine._steps.forward))
    assert {sizes for sizes in found if sizes[0][1] == 1 == len(sizes)} == {((n, 1),) for n in (1, 2, 4, 8)}
    assert 4 < report(model).captured == len(found) <= 4 + 2 * 4, "and of prompts, of 1 to 8 pieces"


def test_graphs_have_bounded_memory() -> None:
    """The oldest goes, and a step that alone would be too much is taken without."""
    model = patched()
    each = Engine(model, requests=1)._steps.forward._bytes(((1, 1),))

    def held(requests: int, memory: int, counts: tuple[int, ...]) -> list[int]:
        model.model._foundry.graphs.limit = memory * each
        engine = Engine(model, requests=requests, budget=300)
        for count in counts:
            for prompt in prompts(count):
                engine.submit(prompt[:4], SamplingParams(max_tokens=3, temperature=0))
            drain(engine)
        return [batch for ((batch, _),) in in_order(engine._steps.forward.graphs.of(engine._steps.forward))]

    assert held(48, 96, (48, 20, 9)) == [48, 32, 16]
    assert held(48, 96, (48, 20, 9, 5)) == [32, 16, 8]
    assert held(48, 64, (48, 20, 9)) == [32, 16]
    assert not report(model).eager


def test_steps_with_prompts_are_recorded_when_they_have_come_often() -> None:
    model = patched()
    engine = Engine(model, requests=1)
    captured = []
    for i, prompt in enumerate(ids(6, 9, seed=1).tolist()):
        engine.submit([i + 3, *prompt], SamplingParams(max_tokens=1, temperature=0)).result()
        captured.append(report(model).captured)
    assert captured == [0, 0, 0, 1, 1, 1] and report(model).steps == 3


def test_steps_with_prompts_keep_no_other_off_its_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """They make room for each other and for steps without, and are taken without graphs where there is none, or where
    they would be too long or mostly padding."""
    model = patched()
    engine = Engine(model, requests=2)
    capture_prompts(engine)
    found = engine._steps.forward
    graphs = found.graphs
    monkeypatch.setattr(forward_module, "step_bytes", lambda *_: 5)
    monkeypatch.setattr(step_graph, "step_bytes", lambda *_: 5)
    graphs.limit = 15

    def answer(length: int, tokens: int = 1) -> list[Any]:
        engine.forget()
        engine.submit(ids(1, length)[0].tolist(), SamplingParams(max_tokens=tokens, temperature=0)).result()
        return in_order(graphs.of(found))

    single, one, two, four, eight = ((1, 1),), ((1, 32),), ((2, 32),), ((4, 32),), ((8, 32),)
    assert answer(20, tokens=2) == [one, single] and answer(40) == [one, single, two]
    assert answer(97) == [single, two, four] and answer(200) == [single, four, eight]
    assert one not in found._met and two not in found._met, "these have to come often again"

    graphs.limit, captured = 10, report(model).captured
    assert answer(20, tokens=2) == [one, single]
    graphs.put(found, ((2, 1),), graphs.of(found).pop(one))
    assert answer(20, tokens=2) == [((2, 1),), single] and report(model).captured == captured + 1

    graphs.limit, found._prompts = 100, 100
    assert answer(33)[-1] == two, "64 tokens, half of which are padding"
    assert four not in answer(97), "128 tokens are too many"
    del graphs.of(found)[two]
    engine.submit([5, 6, 7], SamplingParams(max_tokens=1))
    assert two not in answer(5), "64 tokens for 8"


def test_tables_widen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward_module, "TEXT", 16)
    monkeypatch.setattr(rope, "SMALLEST_HORIZON", 16)  # rope tables grow as well
    model = patched()
    engine = Engine(model, requests=1)
    told, other = SamplingParams(max_tokens=100, temperature=0), copy.deepcopy(model)
    assert engine.submit(prompts()[0], told).result() == alone(other, prompts()[0], 100)
    assert report(model).captured == 4, "for 16, 32, 64 and 128 tokens"
    assert engine.submit(prompts()[3], told).result() == alone(other, prompts()[3], 100)
    assert report(model).captured == 4 and engine._steps.forward._width == 8


@pytest.mark.tier("models")
@pytest.mark.parametrize("requests", [2, 17])
def test_a_changed_model_is_recorded_again(requests: int, tmp_path: Path) -> None:
    model, undo = patched(), contextlib.ExitStack()
    engine = Engine(model, requests=requests, budget=120)
    layer: Any = model.model.layers[0]

    def exchange() -> None:
        layer.mlp.down_proj.weight = torch.nn.Parameter(layer.mlp.down_proj.weight * 2)

    def in_place() -> None:
        with torch.no_grad():
            layer.self_attn.o_proj.weight.mul_(1.5)

    def rotary() -> None:
        model.model.rotary_emb.inv_freq.mul_(1.01)

    def reallocate() -> None:
        slot = engine.cache.layers[0]
        slot.pools[0].data = slot.pools[0].data.clone()  # type: ignore[union-attr]

    def replace() -> None:
        directory = shutil.copytree(Path(torch_foundry.__file__).parents[1] / "shaders", tmp_path / "shaders")
        undo.enter_context(runtime.use_shaders(directory))

    for change, more in ((in_place, 0), (exchange, 1), (rotary, 1), (reallocate, 1), (replace, 1)):
        for prompt in prompts(requests):
            engine.submit(prompt, SamplingParams(max_tokens=30, temperature=0))
        engine.step()
        while engine.scheduler.waiting or any(job.pending != 1 for job in engine.scheduler.running):
            engine.step()
        engine.step()
        captured = report(model).captured
        change()
        forward, seen = engine._steps.forward, []

        def see(parts: Parts, logits: torch.Tensor, captured: bool, forward: Any = forward, seen: Any = seen) -> None:
            seen.append(captured and torch.equal(again(forward, parts), logits))

        run = forward._captured
        watch(engine, see)
        engine.step()
        assert seen and all(seen) and report(model).captured == captured + more, change
        engine._steps.forward, forward._captured = forward, run  # type: ignore[method-assign]
        engine.run()
    undo.close()


def test_what_cannot_be_recorded_runs_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    model = patched()
    expected = [alone(model, prompt) for prompt in prompts(4)]
    engine = Engine(model, requests=4)
    plan = engine._steps.forward.plan
    embed = plan.embed
    monkeypatch.setattr(type(plan), "embed", lambda self, *given: embed(*given) * 1)
    streams = [engine.submit(prompt, GREEDY) for prompt in prompts(4)]
    drain(engine)
    assert [s.tokens for s in streams] == expected
    assert report(model).eager == {"step of an engine: aten::mul.Tensor can't be captured": 1}


@pytest.mark.parametrize("drafts", [None, 3])
def test_many_requests_come_go_and_are_preempted(drafts: int | None, even_pace: None) -> None:
    """More than fused kernels are made for, with blocks for half of them: tokens are those of each request alone."""
    model, chance = patched(), random.Random(0)
    given = [prompt[: 12 + i] for i, prompt in enumerate(prompts(40))]
    expected = [alone(model, prompt, 56) for prompt in given]
    engine = Engine(model, requests=24, budget=70, blocks=42, prompt_lookup_num_tokens=drafts)
    capture_prompts(engine)
    told = SamplingParams(max_tokens=56, temperature=0)
    streams = [engine.submit(prompt, told) for prompt in given[:24]]
    captured, prompted = [], []

    def see(parts: Parts, logits: torch.Tensor, graph: bool) -> None:
        captured.append(len(parts) if graph else 0)
        prompted.append(graph and any(part.wanted < len(part.ids) for part in parts))

    watch(engine, see)
    cancelled = set()
    while len(streams) < len(given) or not engine.idle:
        if len(streams) < len(given) and chance.random() < 0.7:
            streams.append(engine.submit(given[len(streams)], told))
        i = chance.randrange(len(streams))
        if chance.random() < 0.15 and not streams[i].finish_reason:
            streams[i].cancel()
            cancelled.add(i)
        engine.step()
        engine.cache.manager.check()
    assert len(cancelled) > 2 and sum(s.sequence.preempted for s in streams) > 5
    assert max(captured) > 16 and sum(map(bool, captured)) > len(captured) // 2 and sum(prompted) > 10
    assert drafts is None or engine.speculation.drafted
    for i, stream in enumerate(streams):
        assert stream.tokens == (expected[i][: len(stream.tokens)] if i in cancelled else expected[i]), i


def test_several_tokens_of_a_request() -> None:
    """As drafts need them: of different numbers, padded to the same, with logits of each."""
    model = torch_foundry.patch(copy.deepcopy(shared("llama")))
    engine = Engine(model, requests=4)
    forward, manager = engine._steps.forward, engine.cache.manager
    texts = [prompt[:12] for prompt in prompts(3, seed=3)]
    for name, text in enumerate(texts):
        manager.add(name)
        manager.reserve(name, len(text) + 8)
    forward([part_of(name, 0, text, 1) for name, text in enumerate(texts)])
    drafts = [[5, 6, 7, 8, 9], [10], [11, 12, 13]]
    parts = [part_of(name, len(texts[name]), ids, len(ids)) for name, ids in enumerate(drafts)]
    found = forward(parts)
    assert report(model).captured == 1 and [*forward.graphs.of(forward)] == [((4, 8),)]
    for part, logits in zip(parts, found.split([len(own) for own in drafts]), strict=True):
        with torch.no_grad():
            text, last = torch.tensor([texts[part.id] + part.ids]), slice(-len(part.ids), None)
            assert_found_as_exact(
                logits, lambda each, text, last=last: each(text).logits[0, last], shared("llama"), text
            )


@pytest.mark.parametrize("requests", [3, 18])
def test_going_on_is_a_step_of_tokens_that_the_host_knows(requests: int) -> None:
    model = patched()
    found = []
    for known in (True, False):
        engine = Engine(model, requests=32)
        forward, manager = engine._steps.forward, engine.cache.manager
        for p in pools(engine):
            p.zero_()
        for name, text in enumerate(prompts(requests)):
            manager.add(name)
            manager.reserve(name, len(text) + 5)
            forward(parts := [part_of(name, 0, text, 1)])
            assert forward.go_on(torch.zeros(1, dtype=torch.int64), parts, 1) is None, "the last step took in a prompt"
        lengths = [len(text) for text in prompts(requests)]
        logits = forward(parts := [part_of(name, n, [name + 3], 1) for name, n in enumerate(lengths)])
        for i in range(1, 5):
            tokens = logits.argmax(-1)
            if known:
                new = tokens.tolist()
                logits = forward([part_of(name, n + i, [new[name]], 1) for name, n in enumerate(lengths)])
            else:
                logits = forward.go_on(tokens, parts, i)
            assert logits is not None and len(logits) == requests
        found.append((logits.clone(), *(p.clone() for p in pools(engine))))
    assert all(map(torch.equal, *found))
