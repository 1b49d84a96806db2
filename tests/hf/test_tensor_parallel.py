"""Models under transformers' tensor parallelism: fused layers on each process's shards, the tokens of one process."""

from __future__ import annotations

import copy
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import distributed, multiprocessing

from tests.hf.tiny_cases import ALL_FAMILIES, KIN
from tests.hf.tiny_models import PROMPT, build, padded, tokens
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.hf.api import patch, quantize, report, unpatch

# biases; norms of heads; norms behind blocks; whole attention and a factor on residuals; experts beside one that is
# whole, and beside one that is split
FUSED = ("llama-biased", "qwen3", "gemma2", "granitemoe", "qwen2_moe", "glm4_moe")
STOCK = {"phi3": "qkv_proj holds several matrices", "glm": "gate_up_proj holds several matrices"}
REASON = "weights are sharded over {} processes"
Seen = dict[str, Any]
GREEDY = SamplingParams(max_tokens=12, temperature=0)


def logits(model: Any) -> torch.Tensor:
    """Of two prompts of different lengths."""
    inputs = padded([9, 14])
    found: torch.Tensor = model(**inputs).logits
    return found[inputs["attention_mask"].bool()]


def worst(found: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest error."""
    return float((found - exact).abs().max())


def error(call: Any) -> str:
    """What it is refused with."""
    try:
        call()
    except (ValueError, RuntimeError) as found:
        return str(found)
    return ""


def observe(model: Any, family: str) -> Seen:
    """What one of several processes sees of `model`, before it is patched and after."""
    seen: Seen = {"stock": tokens(model)}
    own = [(id(parameter), type(parameter)) for parameter in model.parameters()]
    patch(model)
    seen |= {"tokens": tokens(model), "logits": logits(model)}
    found = report(model)
    names = ("fused", "layers", "fallbacks", "not_replaced", "eager", "captured")
    seen |= {name: getattr(found, name) for name in names}
    seen["same parameters"] = own == [(id(parameter), type(parameter)) for parameter in model.parameters()]
    seen["quantize"] = error(lambda: quantize(model, "q4_0")), error(lambda: quantize(model, {"*": "q8_0"}))
    if family == "qwen3":
        seen |= observe_more(model)
    unpatch(model)
    seen["unpatched"] = tokens(model)
    return seen


def observe_more(model: Any) -> Seen:
    """What is the same for all families."""
    torch.manual_seed(distributed.get_rank())
    drawn = tokens(model, do_sample=True, temperature=2.0)
    torch.manual_seed(0)
    seeded = tokens(model, do_sample=True, temperature=2.0)
    drafted, answers = tokens(model, prompt_lookup_num_tokens=3), serve(model)
    with torch.enable_grad():
        model(PROMPT)
    trained = dict(report(model).fallbacks)
    fused = report(model).fused
    model.bfloat16()  # other shards: layers are planned again
    rounded = model(PROMPT).logits
    again = report(model).fused - fused, dict(report(model).fallbacks)
    model.float()
    said = {"drawn": drawn, "seeded": seeded, "drafted": drafted, "answers": answers}
    return said | {"trained": trained, "rounded": rounded, "again": again}


def serve(model: Any) -> list[list[int]]:
    """Answers of an engine that the first process is asked, and of that in the others: some drawn, one cancelled, in
    more steps than one."""
    refused = [
        error(lambda: Engine(model, requests=3, blocks=16, prompt_lookup_num_tokens=2)),
        error(lambda: Engine(model, requests=3, blocks=16, assistant_model=model)),
    ]
    assert all("weights that are sharded" in said for said in refused), refused
    engine = Engine(model, requests=3, blocks=16)
    if distributed.is_initialized() and distributed.get_rank():
        followed = []
        submit = engine.submit
        engine.submit = lambda *args, **told: followed.append(submit(*args, **told)) or followed[-1]  # type: ignore
        engine.follow()
        return [stream.tokens for stream in followed]
    return ask(engine)


def ask(engine: Engine) -> list[list[int]]:
    """Of the first process, or of one alone."""
    torch.manual_seed(5)
    drawn = [SamplingParams(max_tokens=12, temperature=2.0), SamplingParams(max_tokens=12, temperature=2.0, seed=3)]
    streams = [engine.submit(PROMPT[0].tolist(), params) for params in (GREEDY, *drawn)]
    for _ in range(4):
        engine.step()
    streams.append(engine.submit(PROMPT[0, :5].tolist(), GREEDY))
    gone = engine.submit(PROMPT[0, :3].tolist(), GREEDY)
    engine.step()
    engine.cancel(gone)
    engine.run()
    streams.append(gone)
    shared = PROMPT[0].repeat(2).tolist()  # more than a block, which the second one continues from
    for number in range(3):
        if number == 2:
            engine.forget()
        streams.append(engine.submit(shared, GREEDY))
        engine.run()
    assert streams[-3].tokens == streams[-2].tokens == streams[-1].tokens
    engine.close()
    return [stream.tokens for stream in streams]


def process(rank: int, count: int, families: tuple[str, ...], folder: str) -> None:
    """One of `count` processes; leaves what it saw in a file."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count))
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    seen = {}
    with torch.no_grad():
        for family in families:
            case = (ALL_FAMILIES | KIN)[family]
            told: Any = {"distributed_config": {"tp_size": count}, "attn_implementation": case.attention}
            model = transformers.AutoModelForCausalLM.from_pretrained(f"{folder}/{family}", **told).eval()
            seen[family] = observe(model, family)
    torch.save(seen, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def run(count: int, families: tuple[str, ...], **sizes: int) -> tuple[dict[str, Seen], list[dict[str, Seen]]]:
    """What one process sees of `families`, and what each of `count` does."""
    alone: dict[str, Seen] = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        for family in families:
            model = build(family, **sizes)
            model.save_pretrained(f"{folder}/{family}")
            alone[family] = {"tokens": tokens(model), "logits": logits(model)}
            if family == "qwen3":
                patched = patch(copy.deepcopy(model))
                torch.manual_seed(0)
                alone[family]["seeded"] = tokens(patched, do_sample=True, temperature=2.0)
                alone[family]["answers"] = ask(Engine(patched, requests=3, blocks=16))
                exact = model(PROMPT).logits
                alone[family] |= {"exact": exact, "error": worst(model.bfloat16()(PROMPT).logits, exact)}
        multiprocessing.spawn(process, args=(count, families, folder), nprocs=count)
        return alone, [torch.load(Path(folder, f"{rank}.pt"), weights_only=False) for rank in range(count)]


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    """Two processes."""
    yield run(2, (*FUSED, *STOCK))


def check(alone: Seen, seen: Seen, count: int) -> None:
    """A family of FUSED."""
    assert seen["stock"] == seen["tokens"] == seen["unpatched"] == alone["tokens"]
    torch.testing.assert_close(seen["logits"], alone["logits"], rtol=0, atol=2e-6)
    assert seen["layers"] == 2 and seen["fused"] == 2 * 13 and not seen["fallbacks"] and seen["same parameters"]
    reason = REASON.format(count)
    assert seen["not_replaced"] == {"model.embed_tokens": reason, "lm_head": reason}
    assert not seen["eager"] and seen["captured"] == 1  # the reductions are segments between launches
    assert all(reason in said for said in seen["quantize"])


@pytest.mark.parametrize("family", FUSED)
def test_two_processes_answer_as_one(two: Any, family: str) -> None:
    alone, processes = two
    for seen in processes:
        check(alone[family], seen[family], 2)


@pytest.mark.parametrize("family", STOCK)
def test_what_is_not_understood_runs_stock_code_and_says_so(two: Any, family: str) -> None:
    alone, processes = two
    for seen in (each[family] for each in processes):
        assert seen["stock"] == seen["tokens"] == alone[family]["tokens"]
        assert seen["not_replaced"]["model.layers.0"] == f"{REASON.format(2)}: {STOCK[family]}"
        assert all(REASON.format(2) in said for said in seen["quantize"])


def test_draws_seeds_gradients_dtypes_and_engines(two: Any) -> None:
    """Of two processes that have different random numbers."""
    alone, processes = two[0]["qwen3"], [each["qwen3"] for each in two[1]]
    first, second = processes
    assert first["drawn"] == second["drawn"] != first["tokens"]
    for seen in processes:
        assert seen["seeded"] == alone["seeded"]
        assert seen["drafted"] == alone["tokens"] and seen["answers"] == alone["answers"] and alone["answers"][0]
        assert seen["trained"] == {"gradients are needed": 2}  # the layers
        assert seen["again"] == (2, seen["trained"])
        assert worst(seen["rounded"], alone["exact"]) <= 2 * alone["error"]


@pytest.mark.tier("models")
def test_four_processes_answer_as_one() -> None:
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 4}
    alone, processes = run(4, ("llama-biased", "qwen2_moe"), **sizes)
    for seen in processes:
        for family in seen:
            check(alone[family], seen[family], 4)
