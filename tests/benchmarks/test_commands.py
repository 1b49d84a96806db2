"""bench_ops, bench_e2e and bench_peers from end to end, on tiny shapes; wrong results are seeded and noticed."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import transformers

import torch_foundry
from benchmarks import (
    bench_agent,
    bench_e2e,
    bench_ops,
    bench_peers,
    bench_serving,
    bench_speculation,
    generating,
    measuring,
    results,
)
from benchmarks.cases import QUICK, Case
from benchmarks.generating import Cell
from benchmarks.harness import clock, options, record
from benchmarks.harness.machine import Machine
from benchmarks.models import MODELS, REAL, SEVERAL_KINDS, build, config, state_bytes, weight_bytes
from benchmarks.ops import OPS, cases
from benchmarks.parity import judge, parity
from benchmarks.peers import PEERS
from benchmarks.ways import WAYS
from tests.engine.test_drafting import steps_of_a_second
from torch_foundry import ops
from torch_foundry.cli.loading import UserError
from torch_foundry.generation.draft_length import DraftLengthController

pytestmark = pytest.mark.tier("models")

CPU = torch.device("cpu")
EFFORT = measuring.Effort(0, rounds=3, budget_s=0.0)
FEW = ["--quick", "--silent", "--device", "cpu"]


def rows(path: Path) -> list[dict[str, Any]]:
    return list(record.read([path]))


# ------------------------------------------------------------------------------------------------------------------ ops


def test_bench_ops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_ops.main([*FEW, "--formats", "f32,q8_0", "--out", str(tmp_path), "--commit", "abc"]) == 0
    found = rows(tmp_path / "ops.jsonl")
    assert {r["name"] for r in found} == OPS.keys() and {r["format"] for r in found} == {"f32", "q8_0"}
    assert all(r["valid"] and r["times_us"]["median"] > 0 and r["stock_times_us"]["median"] > 0 for r in found)
    assert all(r["launches"] == 1 and r["machine"]["commit"] == "abc" for r in found)
    assert any(r["shape"].get("in") == "3d" for r in found)
    assert "0 invalid" in capsys.readouterr().out
    assert results.main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "| 96x64 |" in shown and "| glu | f32 | tiny mlp rows 1 n 96 |" in shown and "commit abc" in shown
    assert (tmp_path / f"roofline-{_slug(found[0])}.png").stat().st_size > 5000


def _slug(row: dict[str, Any]) -> str:
    return "".join(c if c.isalnum() else "-" for c in row["machine"]["device_name"].lower()).strip("-")


WRONG = {
    "glu": lambda gate, up, format: ops.glu(up, gate, "silu"),
    "rms_norm": lambda x, weight, format: ops.rms_norm(x, weight, 1e-2),
    "embedding": lambda ids, weight, format: ops.embedding(ids, weight, scale=1.01),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_op_is_invalid(name: str, machine: Machine) -> None:
    case = next(c for c in cases({"tiny": MODELS["tiny"]}, [name], ["f32"], ["2d"], QUICK) if c.rows > 1)
    wrong = dataclasses.replace(OPS[name], run=WRONG[name])
    row = measuring.measure(case, wrong, CPU, machine, EFFORT)
    assert row.parity.ok is False and row.parity.detail and not row.valid and row.speedup is None
    assert measuring.measure(case, OPS[name], CPU, machine, EFFORT).valid


def test_wrong_in_one_element_is_wrong() -> None:
    case = Case("rms_norm", "", "f16", 64, 4096)
    op = dataclasses.replace(OPS["rms_norm"], run=lambda **given: _off_by_one(OPS["rms_norm"].run(**given)))
    given = op.inputs(case, torch.Generator().manual_seed(0))
    assert measuring.check(op, case, given, given)[1].ok is False


def _off_by_one(y: torch.Tensor) -> torch.Tensor:
    y.view(-1)[1234] += 0.05
    return y


def test_wrong_while_it_is_timed_is_wrong(machine: Machine) -> None:
    """Right when it is checked, of other inputs when it is recorded."""
    calls = [0]

    def run(gate: torch.Tensor, up: torch.Tensor, format: str) -> torch.Tensor:
        calls[0] += 1
        return ops.glu(gate, up if calls[0] == 1 else gate, "silu")

    case = Case("glu", "", "f32", 1, 96)
    row = measuring.measure(case, dataclasses.replace(OPS["glu"], run=run), CPU, machine, EFFORT)
    assert not row.valid and "timed call" in row.parity.detail


def test_an_op_that_fails_is_a_row(machine: Machine) -> None:
    odd = Case("attention", "", "f32", 1, 16, heads=(2, 1, 40))  # there is no kernel for this head_dim
    row = bench_ops.one(odd, CPU, machine, EFFORT)
    assert not row.valid and row.kind == "op" and "head_dim" in row.parity.detail


def test_wrong_rows_make_the_command_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPS, "glu", dataclasses.replace(OPS["glu"], run=WRONG["glu"]))
    few = [*FEW, "--formats", "f32", "--ops", "glu", "--no-plots", "--out", str(tmp_path)]
    assert bench_ops.main(few) == 1
    assert not any(r["valid"] for r in rows(tmp_path / "ops.jsonl"))


def test_bad_requests(capsys: pytest.CaptureFixture[str]) -> None:
    for bad in (["--ops", "sort"], ["--formats", "q9_9"], ["--models", "gpt"], ["--rows", "0"], ["--device", "abacus"]):
        assert options.run("bench_ops", bench_ops.main, ["--device", "cpu", *bad]) == 2
        assert bad[0] in capsys.readouterr().err


def test_cases_are_the_shapes_of_the_models() -> None:
    real = {name: MODELS[name] for name in REAL}
    linear = {(c.n, c.k) for c in cases(real, ["linear"], ["f16"], ["2d"], QUICK)}
    assert {(896, 896), (128, 896), (4864, 896), (896, 4864), (151936, 896)} <= linear
    assert {(2048, 8192), (128256, 2048), (2560, 4096), (9728, 2560), (14336, 4096), (1024, 4096)} <= linear
    every = cases(real, list(OPS), ["f16", "q4_0"], ["2d", "3d"], QUICK)
    assert len(every) == len(set(every)) and {c.op for c in every if c.format == "q4_0"} == {
        *("linear", "norm_linear", "norm_qkv", "norm_glu", "embedding", "attention")
    }
    for name, model in MODELS.items():
        described = config(model, 64)
        if name not in SEVERAL_KINDS:
            assert described.head_dim == model.head_dim if hasattr(described, "head_dim") else name == "qwen2.5-0.5b"
            assert described.rope_parameters["rope_theta"] == model.options.get("rope_theta", 1e4)


def test_bytes_of_a_token() -> None:
    """Of experts those that it goes to, of embeddings none that is only looked up, of windows and states what there
    is."""
    expected = {"qwen3.5-0.8b": (1.505e9, 50.0e6), "gemma-4-e4b": (9.289e9, 65.4e6), "gpt-oss-20b": (7.217e9, 27.7e6)}
    for name, bytes in expected.items():
        with torch.device("meta"):
            network = transformers.AutoModelForCausalLM.from_config(config(MODELS[name], 8192), dtype=torch.bfloat16)
        found = weight_bytes(network), state_bytes(network, "bf16", 1, 1000)
        assert found == pytest.approx(bytes, rel=2e-3)


# --------------------------------------------------------------------------------------------------------- whole models

OURS = [way.title for way in WAYS.values() if way.ours]
SHORT = ["--cells", "1x6,2x6", "--max-tokens", "5", "--iterations", "2"]


@pytest.fixture
def even_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which each run takes a second more than the one before: tokens take time, on a busy machine too."""
    seconds = itertools.count(1)
    monkeypatch.setattr(clock, "wall", lambda device, run: (run(), float(next(seconds)))[1])


def test_bench_e2e(tmp_path: Path, capsys: pytest.CaptureFixture[str], even_clock: None) -> None:
    assert bench_e2e.main([*FEW, *SHORT, "--formats", "q8_0,f16,f32", "--profile", "--out", str(tmp_path)]) == 0
    found = rows(tmp_path / "e2e.jsonl")
    measured = [r for r in found if r["kind"] == "e2e"]
    assert {(r["way"], r["format"], r["shape"]["batch"]) for r in measured} == {
        (way, fmt, batch)
        for way, fmt in (
            ("HF eager", "f16"),
            ("HF eager", "f32"),
            *((w, f) for w in OURS for f in ("f16", "f32", "q8_0")),
        )
        for batch in (1, 2)
    }
    for r in measured:
        assert r["valid"] and r["times_us"]["rounds"] == 2 and r["prefill_us"]["median"] > 0
        assert (r["launches"] > 0) == (r["way"] in OURS) and r["extra"]["iterations"] == 2
        assert r["extra"]["tokens_per_s"].keys() == {"min", "avg", "median", "max"}
        assert not any("stock code ran" in flag for flag in r["flags"])
    packed = next(r for r in measured if r["format"] == "q8_0")
    assert packed["stock"] == "HF eager f16" and packed["speedup"] and packed["bytes"] < measured[0]["bytes"]
    skipped = {(r["way"], r["format"]): r["reason"] for r in found if r["kind"] == "skipped"}
    assert "compiles nothing on cpu" in skipped["HF static cache + compile", "f32"]
    assert "no packed weights" in skipped["HF eager", "q8_0"]
    profiled = rows(tmp_path / "profiles.jsonl")
    assert len(profiled) == len(measured) and all(r["attribution_only"] and not r["valid"] for r in profiled)
    assert "attribution only" in (tmp_path / profiled[0]["extra"]["profile"]).read_text()
    assert "compiles nothing on cpu" in capsys.readouterr().out
    assert results.main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "| tiny | f32 | 2, 6 | patched |" in shown and "same tokens" in shown and "0 invalid" in shown


def test_bench_e2e_after_how_many_tokens_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, even_clock: None
) -> None:
    seen: list[str] = []
    right = generating.generate

    def noted(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(os.environ.get("TORCH_FOUNDRY_SYNC_EVERY", ""))
        return right(*args, **kwargs)

    monkeypatch.setattr(generating, "generate", noted)
    few = [*FEW, "--prompts", "6", "--batches", "1", "--max-tokens", "5", "--iterations", "1", "--no-plots"]
    swept = ["--formats", "f32", "--ways", "eager", "--sync-every", "1,4"]
    assert bench_e2e.main([*few, *swept, "--out", str(tmp_path)]) == 0
    found = [(r["way"], r["parity"]["criterion"]) for r in rows(tmp_path / "e2e.jsonl")[1:]]
    assert found == [(f"patched, {n} at once", "the greedy tokens of HF eager") for n in (1, 4)]
    assert list(dict.fromkeys(seen)) == ["", "1", "4"] and "TORCH_FOUNDRY_SYNC_EVERY" not in os.environ


def test_wrong_tokens_are_invalid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, even_clock: None) -> None:
    right = generating.generate

    def wrong(network: Any, ids: torch.Tensor, new: int, **more: Any) -> torch.Tensor:
        tokens = right(network, ids, new, **more)
        if type(network).__module__ == "transformers.models.llama.modeling_llama" and not hasattr(network, "_foundry"):
            return tokens
        return torch.cat((tokens[:, :-1], (tokens[:, -1:] + 1) % 320), 1)

    monkeypatch.setattr(generating, "generate", wrong)
    few = [*FEW, "--prompts", "6", "--batches", "1", "--max-tokens", "5", "--iterations", "1", "--no-plots"]
    assert bench_e2e.main([*few, "--formats", "f32,f16", "--ways", "eager,patched", "--out", str(tmp_path)]) == 1
    found = rows(tmp_path / "e2e.jsonl")
    assert {(r["way"], r["valid"]) for r in found} == {("HF eager", True), ("patched", False)}
    assert "tokens differ from step 5 on" in next(r for r in found if not r["valid"])["parity"]["detail"]


def test_regret_is_zero_for_greedy_tokens_and_large_for_others() -> None:
    network = build(MODELS["tiny"], "f32", CPU)
    cell = Cell(2, 6, 4)
    ids = cell.ids(320, CPU, seed=3)
    tokens = generating.generate(network, ids, 5)
    assert judge(network, ids, tokens).error < 1e-5
    other = tokens.clone()
    other[1, 2] = (other[1, 2] + 1) % 320
    assert judge(network, ids, other).error > 0.1
    assert judge(network, ids, other, rank=320).error == 0 < judge(network, ids, other, rank=2).error
    half = network.half()
    assert parity(half, WAYS["compiled"], ids, other, None).ok is False
    assert parity(half, WAYS["compiled"], ids, tokens, None).ok


@pytest.mark.parametrize("fmt", ["bf16", "q8_0"])
def test_a_wrong_model_is_not_excused_by_its_own_error(fmt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens are far from stock's, and so are its logits: that must not widen what is allowed.

    The fault is one that `compare` doesn't see, as if it had not looked: tokens alone must tell.
    """
    network = build(MODELS["tiny"], fmt, CPU)
    ids = Cell(2, 12, 24).ids(320, CPU, seed=3)
    with torch_foundry.patched(network):
        right = generating.generate(network, ids, 25)
        glu = ops.norm_glu
        monkeypatch.setattr(ops, "norm_glu", lambda x, gain, eps, *rest, **more: glu(x, gain, eps + 0.3, *rest, **more))
        wrong = generating.generate(copy.deepcopy(network), ids, 25)
    seen = torch_foundry.compare(network, ids)
    blind = dataclasses.replace(seen, paths=[dataclasses.replace(seen.paths[0], logits=seen.logits)])
    assert blind.first_bad is None and blind.logits > 0.01
    monkeypatch.setattr(torch_foundry, "compare", lambda *_: blind)
    way = WAYS["patched"]
    assert parity(network, way, ids, right, None).ok
    found = parity(network, way, ids, wrong, None)
    assert not found.ok and found.error > 0.1, found


def test_a_step_that_swallows_the_run_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    network = build(MODELS["tiny"], "f32", CPU)
    cell = Cell(1, 4, 6)
    ids = cell.ids(320, CPU, seed=0)
    steady = generating.time_generation(network, WAYS["eager"], ids, cell, 1)
    assert steady.launches == 0 and steady.ids.shape == (1, 7)
    monkeypatch.setattr(generating.Stamps, "steps", lambda self: [1e-5] * 5 + [0.1])
    flagged = generating.time_generation(network, WAYS["eager"], ids, cell, 1)
    assert any("timing artefact: step 5 of 6" in flag for flag in flagged.flags)


def test_steps_are_those_after_the_prompt() -> None:
    stamps = generating.Stamps(CPU)
    for _ in range(5):  # the prompt, its first token, three more
        stamps.put(torch.zeros(1))
    assert len(stamps.times) == 5 and len(stamps.steps()) == 3


def test_packed_models_have_packed_weights() -> None:
    dense, packed = build(MODELS["tiny"], "f16", CPU), build(MODELS["tiny"], "q8_0", CPU)
    assert weight_bytes(packed) < 0.6 * weight_bytes(dense)
    assert packed.lm_head.format == "q8_0" and packed.model.embed_tokens.format == "q8_0"


# ---------------------------------------------------------------------------------------------------------------- peers


def test_missing_peers_are_skipped_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mlx", "mlx.core", "mlx_lm", "llama_cpp"):
        monkeypatch.setitem(sys.modules, name, None)
    assert bench_peers.main([*FEW, "--out", str(tmp_path)]) == 0
    reasons = {r["name"]: r["reason"] for r in rows(tmp_path / "peers.jsonl")}
    assert reasons.keys() == PEERS.keys() and all("mlx" in r or "llama_cpp" in r for r in reasons.values())


def test_a_peer_that_is_broken_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def find_spec(self, name: str, path: Any, target: Any = None) -> None:
            if name == "llama_cpp":
                raise OSError("libllama.so: cannot open shared object file")

    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert PEERS["llama.cpp"].why_not() == "llama_cpp: libllama.so: cannot open shared object file"


def test_a_stand_in_for_llama_cpp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file that is written holds the model: the stand-in reads the number of its tensors, and makes tokens up."""
    seen: list[int] = []

    class Llama:
        def __init__(self, path: str, **options: Any) -> None:
            import gguf

            reader = gguf.GGUFReader(path)
            seen.append(len(reader.tensors))
            assert reader.fields["llama.block_count"].contents() == 2

        def reset(self) -> None:
            pass

        def generate(self, prompt: list[int], **options: Any) -> Any:
            yield from range(1000)

        def close(self) -> None:
            pass

    module: Any = ModuleType("llama_cpp")
    module.Llama, module.__version__, module.llama_supports_gpu_offload = Llama, "0", lambda: False
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    monkeypatch.delitem(sys.modules, "benchmarks.peers.llama_cpp", raising=False)
    few = [*FEW, "--peers", "llama.cpp", "--formats", "f16,q4_0", "--prompts", "6", "--max-tokens", "4"]
    assert bench_peers.main([*few, "--iterations", "1", "--out", str(tmp_path)]) == 1
    monkeypatch.delitem(sys.modules, "benchmarks.peers.llama_cpp")
    found = rows(tmp_path / "peers.jsonl")
    assert seen == [2 * 9 + 3] * 2 and len(found) == 2 and not any(r["valid"] for r in found)


def test_bench_serving(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines, with answers that are right; one that isn't makes its row invalid."""
    few = [*FEW, "--formats", "f32", "--prompt", "6", "--max-tokens", "6", "--iterations", "1", "--out", str(tmp_path)]
    few += ["--arriving", "3", "--longest", "40"]
    assert bench_serving.main([*few, "--concurrent", "3"]) == 0
    found = rows(tmp_path / "serving.jsonl")
    names = ["engine, 1", "engine, 3", "generate", "arriving, 3"]
    assert [row["way"] for row in found] == names and all(row["valid"] and row["speedup"] for row in found)
    extra = found[-1]["extra"]
    assert all(0 < extra[name]["p50"] <= extra[name]["p100"] for name in ("first_ms", "gap_ms"))
    serve = bench_serving.Runs._serve

    def wrong(runs: Any, engine: Any, prompts: Any) -> Any:
        answers, seconds = serve(runs, engine, prompts)
        if len(prompts) == 3:
            answers[2][4] = (answers[2][4] + 1) % 300
        return answers, seconds

    monkeypatch.setattr(bench_serving.Runs, "_serve", wrong)
    assert bench_serving.main([*few, "--concurrent", "3"]) == 1
    assert "WRONG, 1 part" in capsys.readouterr().out


def test_bench_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns go on from snapshots; a wrong answer, or a turn that reads too much again, makes the rows invalid."""
    few = [*FEW, "--formats", "f32", "--out", str(tmp_path)]
    assert bench_agent.main(few) == 0
    kept, anew = rows(tmp_path / "agent.jsonl")
    assert (kept["way"], anew["way"]) == ("kept, every 16", "all read again") and kept["valid"] and anew["valid"]
    assert 0 <= kept["extra"]["read_again"] <= 16 and len(kept["extra"]["turns_ms"]) == kept["shape"]["turns"] == 3
    ask, fault = bench_agent.Trace._ask, ""

    def wrong(trace: Any, texts: Any) -> Any:
        if fault == "forgets":
            trace.engine.forget()
        turns = ask(trace, texts)
        if fault == "answers" and turns[0].reused:
            turns[0].answer[-1] ^= 1
        return turns

    monkeypatch.setattr(bench_agent.Trace, "_ask", wrong)
    for fault, said in (("answers", "WRONG, 3 part"), ("forgets", "WRONG, 0 part")):
        assert bench_agent.main(few) == 1
        assert said in capsys.readouterr().out, fault


def test_bench_drafts(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that repeats itself as often as was asked for, with drafts and without."""
    steps_of_a_second(monkeypatch)
    few = [*FEW, "--formats", "f32", "--networks", "repeating,random", "--prompt", "128", "--max-tokens", "90"]
    few += ["--concurrent", "2"]
    assert bench_speculation.main([*few, "--iterations", "1", "--holds", "1,0.8", "--out", str(tmp_path)]) == 0
    found = rows(tmp_path / "speculation.jsonl")
    shapes = [(row["shape"]["network"], row["shape"]["hold"]) for row in found]
    assert shapes == [("repeating", h) for h in (1, 1, 1, 1, 0.8, 0.8, 0.8, 0.8)] + [("random", 1)] * 2
    assert [row["way"] for row in found[:3:2]] == ["generate", "engine, 2"]
    assert all(row["valid"] and row["speedup"] for row in found)
    always, often = found[1]["extra"], found[5]["extra"]
    assert always["accepted"] == always["drafted"] > 60, "a circle"
    assert 0.4 < often["accepted"] / often["drafted"] < 0.95 and often["tokens_per_step"] > 1.2
    assert "1.0" in capsys.readouterr().out
    generate = bench_speculation.Runs._generate

    def wrong(runs: Any, tokens: int, **source: Any) -> Any:
        answer, seconds = generate(runs, tokens, **source)
        return ([*answer[:-1], answer[-1] ^ 1] if source else answer), seconds

    monkeypatch.setattr(bench_speculation.Runs, "_generate", wrong)
    assert bench_speculation.main([*few, "--iterations", "1", "--holds", "1", "--out", str(tmp_path)]) == 1
    assert "WRONG" in capsys.readouterr().out
    few[few.index("repeating,random")] = "scripted"
    few[few.index("90")] = "30"
    out = tmp_path / "scripted"
    monkeypatch.undo()
    monkeypatch.setattr(DraftLengthController, "pays", lambda *_: True)
    assert bench_speculation.main([*few, "--iterations", "1", "--right", "1,0", "--out", str(out)]) == 0
    found = rows(out / "speculation.jsonl")
    ways = ["generate, MTP head", "engine, 2, MTP head", "generate, draft model", "engine, 2, draft model"]
    assert [row["way"] for row in found[1::2]] == ways * 2 and all(row["valid"] for row in found)
    for row in found[1::2]:
        drafted, share = row["extra"]["drafted"], row["shape"]["right"]
        assert row["extra"]["accepted"] == share * drafted and drafted > 10, str(row)
    with pytest.raises(UserError, match=r"--holds: expected numbers from 0\.51 to 1, got '0\.3'"):
        bench_speculation.main([*few, "--holds", "0.3"])
