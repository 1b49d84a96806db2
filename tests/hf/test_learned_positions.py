"""Learned positions (GPT-2 and its kin, OPT), and weights of [inputs, outputs] (GPT-2)."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, GPT2Config, GPT2LMHeadModel, OPTConfig, OPTForCausalLM
from transformers.pytorch_utils import Conv1D

import torch_foundry
from tests.hf.checks import check_engine, check_tokens
from tests.hf.test_families import FLOOR
from tests.hf.tiny_cases import HEADS, OPT
from tests.hf.tiny_models import (
    DEVICE,
    PROMPT,
    assert_equal,
    build,
    classes,
    config,
    fused_all,
    ids,
    launches_of_a_step,
    padded,
    random_model,
    tokens,
)
from torch_foundry.engine import Engine, SamplingParams
from torch_foundry.hf.api import report
from torch_foundry.nn import FoundryEmbedding, FoundryLinear
from torch_foundry.testing.tolerance import relative_error

LEARNED = ["gpt2", "gpt_bigcode", "gpt_neo", "opt"]
POSITIONS = 24  # that a model has, where tests go beyond


def pair(family: str = "gpt2", **sizes: int) -> tuple[Any, Any]:
    """Stock, patched."""
    stock = build(family, **sizes)
    return stock, torch_foundry.patch(copy.deepcopy(stock))


def conv1ds(model: Any) -> list[Any]:
    """Its layers of GPT-2's kind."""
    return [module for module in model.modules() if isinstance(module, Conv1D)]


# ------------------------------------------------------------------------------------------------------------ positions


@pytest.mark.parametrize("mode", ["padded beams", "chunked prefill", "second turn", "prompt lookup", "no cache"])
@pytest.mark.parametrize("family", LEARNED)
def test_ways_to_generate(family: str, mode: str) -> None:
    check_tokens(family, mode)


@pytest.mark.parametrize("family", LEARNED)
def test_engine_that_drafts(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_engine(family, monkeypatch)


@torch.no_grad()
@pytest.mark.parametrize("family", LEARNED)
@pytest.mark.parametrize("given", [True, False])
def test_steps_stand_where_stock_code_has_them(family: str, given: bool) -> None:
    """Rows of different lengths: behind padding, at positions of the caller's or at those that follow without any."""
    stock, model = pair(family)
    inputs, logits = padded([12, 7]), []
    for each in (stock, model):
        cache, parts = DynamicCache(config=each.config), []
        for start, end in ((0, 9), (9, 11), (11, 12)):
            mask = inputs["attention_mask"][:, :end]
            options = {"attention_mask": mask, "past_key_values": cache}
            if given:
                options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)[:, start:end]
            parts.append(each(inputs["input_ids"][:, start:end], **options).logits)
        logits.append(torch.cat(parts, 1)[inputs["attention_mask"].bool()])
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-5)
    assert report(model).steps == 2 and not report(model).eager, str(report(model))


@torch.no_grad()
@pytest.mark.parametrize("family", LEARNED)
def test_they_are_one_launch_more(family: str) -> None:
    counts = launches_of_a_step(pair(family)[1])
    assert counts["embedding"] == 2, str(counts)


@torch.no_grad()
def test_padding_among_new_tokens_is_stock_codes(quiet: None) -> None:
    """Where OPT counts positions by the mask, that of padding is the one before the first."""
    stock, model = pair("opt")
    inputs, logits = padded([12, 12]), []
    inputs["attention_mask"][1, 10] = 0
    for each in (stock, model):
        cache, parts = DynamicCache(config=each.config), []
        for start, end in ((0, 9), (9, 11), (11, 12)):
            mask = inputs["attention_mask"][:, :end]
            parts.append(each(inputs["input_ids"][:, start:end], attention_mask=mask, past_key_values=cache).logits)
        logits.append(torch.cat(parts, 1)[inputs["attention_mask"].bool()])
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-5)
    assert report(model).steps == 1 and any("padding among" in why for why in report(model).eager), str(report(model))


@torch.no_grad()
def test_a_table_that_is_told_a_mask_alone_is_stock_codes(quiet: None) -> None:
    stock, model = pair("opt")
    mask = padded([12, 7])["attention_mask"]
    assert_equal([model.model.decoder.embed_positions(mask, 3)], [stock.model.decoder.embed_positions(mask, 3)])


@torch.no_grad()
def test_a_table_that_changes_in_place_is_read_anew() -> None:
    stock, model = pair()
    before = tokens(model)
    for each in (stock, model):
        each.transformer.wpe.weight.mul_(-4)
    assert tokens(model) == tokens(stock) != before and report(model).captured == 1


@torch.no_grad()
@pytest.mark.parametrize("family", LEARNED)
def test_the_last_position_is_used(family: str) -> None:
    """The last token that is generated stands nowhere yet."""
    stock, model = pair(family, max_position_embeddings=POSITIONS)
    new, found = POSITIONS + 1 - PROMPT.shape[1], []
    for mode in ({"num_beams": 2}, {"prompt_lookup_num_tokens": 4}, {}):
        found = [m.generate(PROMPT, max_new_tokens=new, do_sample=False, **mode).tolist() for m in (stock, model)]
        assert found[0] == found[1] and len(found[0][0]) == POSITIONS + 1
    assert fused_all(model)
    engine = Engine(model, requests=1, blocks=9)
    stream = engine.submit(PROMPT[0].tolist(), SamplingParams(max_tokens=99, temperature=0))
    engine.run()
    assert PROMPT[0].tolist() + stream.tokens == found[0][0][:POSITIONS]


@torch.no_grad()
@pytest.mark.cpu_only
@pytest.mark.parametrize("family", LEARNED)
def test_there_are_none_beyond(family: str) -> None:
    """As stock code says; the cache keeps what was read before."""
    stock, model = pair(family, max_position_embeddings=POSITIONS)
    for each in (stock, model):
        with pytest.raises(IndexError):
            each.generate(PROMPT, max_new_tokens=POSITIONS, do_sample=False)
    cache = DynamicCache(config=model.config)
    model(ids(1, POSITIONS), past_key_values=cache)
    with pytest.raises(IndexError):
        model(PROMPT[:, :1], past_key_values=cache)
    assert cache.get_seq_length() == POSITIONS
    assert any("positions beyond the 24" in why for why in report(model).eager), str(report(model))
    with pytest.raises(ValueError, match="fewer than 24 tokens"):
        Engine(model, requests=1, blocks=9).submit(ids(1, POSITIONS)[0].tolist())
    cache = DynamicCache(config=model.config)
    model(PROMPT, past_key_values=cache)
    with pytest.raises(IndexError):
        model(PROMPT[:, :1], past_key_values=cache, position_ids=torch.tensor([[POSITIONS]]))


@torch.no_grad()
@pytest.mark.parametrize("family", ["gpt2", "gpt_bigcode", "opt"])  # GPT-Neo's stock code has no masks that long
def test_padding_takes_none(family: str) -> None:
    """A batch may have more tokens than there are positions, of which padding needs none."""
    stock, model = pair(family, max_position_embeddings=POSITIONS)
    inputs = padded([5, 3])
    inputs = {name: torch.nn.functional.pad(value, (8, 0)) for name, value in inputs.items()}
    both = [m.generate(**inputs, max_new_tokens=POSITIONS - 4, do_sample=False).tolist() for m in (stock, model)]
    assert both[0] == both[1] and fused_all(model) and report(model).steps >= POSITIONS - 5, str(report(model))


# ---------------------------------------------------------------------------------------- weights of [inputs, outputs]


def test_weights_keep_names_shapes_and_values() -> None:
    stock, model = pair()
    before, patched = stock.state_dict(), model.state_dict()
    assert list(before) == list(patched) and {n: t.shape for n, t in before.items()} == {
        n: t.shape for n, t in patched.items()
    }
    assert tokens(model) == tokens(stock)
    assert_equal(list(model.state_dict().values()), list(before.values()))
    assert all(module.weight.stride(0) == 1 for module in conv1ds(model)) and len(conv1ds(model)) == 8
    size = sum(t.untyped_storage().nbytes() for t in {t.data_ptr(): t for t in model.state_dict().values()}.values())
    assert size == sum(t.nbytes for t in {t.data_ptr(): t for t in before.values()}.values()), "no second copy"
    torch_foundry.unpatch(model)
    assert classes(model) == classes(stock) and tokens(model) == tokens(stock)
    assert_equal(list(model.state_dict().values()), list(before.values()))
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize("patched", [True, False])
def test_a_saved_model_is_loaded_and_gives_the_same(patched: bool, tmp_path: Path) -> None:
    stock, model = pair()
    assert tokens(model) == tokens(stock)
    (model if patched else torch_foundry.unpatch(model)).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert_equal([*loaded.state_dict().values()], [*stock.state_dict().values()])
    loaded.generation_config.eos_token_id = None
    assert tokens(torch_foundry.patch(loaded)) == tokens(stock) and fused_all(loaded)


def _in_place(model: Any) -> None:
    for module in conv1ds(model):
        module.weight.mul_(-3)


def _assigned(model: Any) -> None:
    model.load_state_dict(build("gpt2", seed=7).state_dict(), assign=True)
    model.tie_weights()


def _exchanged(model: Any) -> None:
    model.transformer.h[1].mlp.c_fc.weight = torch.nn.Parameter(model.transformer.h[0].mlp.c_fc.weight.contiguous())


@torch.no_grad()
@pytest.mark.parametrize("change", [_in_place, _assigned, _exchanged])
def test_weights_that_change_are_read_anew(change: Any) -> None:
    stock, model = pair()
    before = tokens(model)
    change(stock)
    change(model)
    assert tokens(model) == tokens(stock) != before
    assert fused_all(model) and not report(model).eager, str(report(model))


@torch.no_grad()
def test_copies_dtypes_and_models_without_weights() -> None:
    stock, model = pair()
    assert tokens(copy.deepcopy(model)) == tokens(stock)
    stock, model = stock.half().float(), model.half().float()
    assert tokens(model) == tokens(stock) and fused_all(model)
    with torch.device("meta"):
        empty = torch_foundry.patch(AutoModelForCausalLM.from_config(stock.config).eval())
    empty.load_state_dict(stock.state_dict(), assign=True)
    empty.tie_weights()
    empty.generation_config.eos_token_id = None
    assert tokens(empty) == tokens(stock) and fused_all(empty)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_scores_that_stock_code_widens_are_as_exact(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    options = {**HEADS, "reorder_and_upcast_attn": True, "attn_implementation": "eager"}
    stock = GPT2LMHeadModel(config("GPT2Config", **options)).eval().to(DEVICE, dtype)
    exact = copy.deepcopy(stock).double()
    for block in exact.transformer.h:
        block.attn.reorder_and_upcast_attn = False  # which stock code refuses for float64
    model = torch_foundry.patch(copy.deepcopy(stock))
    truth = exact(ids(2, 20)).logits
    ours, theirs = (relative_error(m(ids(2, 20)).logits, truth) for m in (model, stock))
    assert ours <= 1.5 * theirs + FLOOR[dtype] and fused_all(model)


# ------------------------------------------------------------------------------------------------------- packed weights


@torch.no_grad()
def test_packed_weights(tmp_path: Path) -> None:
    model = torch_foundry.patch(build("gpt2"), quantize="q8_0")
    assert not conv1ds(model) and sum(isinstance(m, FoundryLinear) for m in model.modules()) == 9
    dense = torch_foundry.dequantize(copy.deepcopy(model))
    assert [tuple(m.weight.shape) for m in conv1ds(dense)[:2]] == [(64, 192), (64, 64)]
    expected = tokens(dense)
    assert tokens(model) == expected and fused_all(model), str(report(model))
    stock = torch_foundry.unpatch(dense)
    assert tokens(stock) == expected, "stock code reads them as Conv1Ds"
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    loaded.generation_config.eos_token_id = None
    assert tokens(torch_foundry.patch(loaded)) == expected and fused_all(loaded)
    again = torch_foundry.dequantize(torch_foundry.unpatch(loaded))
    assert classes(again) == classes(stock) and tokens(again) == expected


@torch.no_grad()
def test_packed_while_they_are_loaded(tmp_path: Path) -> None:
    stock = build("gpt2")
    stock.save_pretrained(tmp_path)
    expected = tokens(torch_foundry.patch(stock, quantize="q8_0"))
    loaded = AutoModelForCausalLM.from_pretrained(
        tmp_path, quantization_config=torch_foundry.FoundryConfig("q8_0")
    ).eval()
    loaded.generation_config.eos_token_id = None
    assert tokens(torch_foundry.patch(loaded)) == expected and fused_all(loaded)


@torch.no_grad()
@pytest.mark.parametrize("family", LEARNED)
def test_packed_by_patterns(family: str) -> None:
    """But for OPT's, the table of positions too."""
    model = torch_foundry.patch(build(family), quantize={"*": "q8_0"})
    assert sum(isinstance(module, FoundryEmbedding) for module in model.modules()) == 1 + (family != "opt")
    assert sum(isinstance(module, FoundryLinear) for module in model.modules()) >= 9
    assert tokens(model) == tokens(torch_foundry.dequantize(copy.deepcopy(model))) and fused_all(model)


@torch.no_grad()
def test_inputs_of_transposed_layers_are_measured() -> None:
    found = torch_foundry.importance(build("gpt2"), ids(1, 40)[0])
    assert found["transformer.h.0.mlp.c_proj"].shape == (256,) and len(found) == 9


# ------------------------------------------------------------------------------------------------------------- adapters


@pytest.mark.parametrize("packed", [False, True])
def test_adapters(packed: bool, quiet: None) -> None:
    """They train, and what they add is merged into the weight, or its transpose."""
    peft = pytest.importorskip("peft")
    model = build("gpt2")
    model = torch_foundry.patch(model, quantize="q8_0" if packed else None)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["c_attn", "c_proj"], fan_in_fan_out=not packed)
    )
    torch.manual_seed(1)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    adapted(PROMPT, labels=PROMPT).loss.backward()
    assert all(p.grad is not None and p.grad.any() for n, p in adapted.named_parameters() if "lora_" in n)
    with torch.no_grad():
        expected = adapted.eval()(PROMPT).logits
        if packed:
            again = torch_foundry.merge_adapters(copy.deepcopy(adapted))
            assert not conv1ds(again) and relative_error(again(PROMPT).logits, expected) < 0.02
        merged = torch_foundry.merge_adapters(adapted, None)
        torch.testing.assert_close(merged(PROMPT).logits, expected, rtol=1e-4, atol=1e-4)
        stock = torch_foundry.dequantize(torch_foundry.unpatch(merged))
        torch.testing.assert_close(stock(PROMPT).logits, expected, rtol=1e-4, atol=1e-4)


def test_gradients_are_stocks() -> None:
    stock, model = pair()
    for each in (stock, model):
        each(PROMPT, labels=PROMPT).loss.backward()
    for (name, ours), theirs in zip(model.named_parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=name)


# -------------------------------------------------------------------------------------------------------------- refused


@pytest.mark.parametrize(
    "name, options, why",
    [
        ("GPT2Config", {"add_cross_attention": True}, "GPT2Block has ['attn', 'crossattention'"),
        ("GPT2Config", {"activation_function": "tanh"}, "activation Tanh"),
        ("GPTBigCodeConfig", {"multi_query": False}, "config.multi_query is not set"),
        ("OPTConfig", {"do_layer_norm_before": False}, "config.do_layer_norm_before is not set"),
    ],
)
def test_what_a_config_switches_on_is_refused(name: str, options: dict[str, Any], why: str) -> None:
    seen = report(torch_foundry.patch(random_model(config(name, **HEADS, **options))))
    assert seen.layers == 0 and any(why in found for found in seen.not_replaced.values()), str(seen)


@torch.no_grad()
def test_types_of_tokens_are_stock_codes(quiet: None) -> None:
    stock, model = pair()
    given = {"token_type_ids": torch.ones_like(PROMPT)}
    torch.testing.assert_close(model(PROMPT, **given).logits, stock(PROMPT, **given).logits, rtol=1e-4, atol=1e-5)
    cache = DynamicCache(config=model.config)
    model(PROMPT, past_key_values=cache)
    model(PROMPT[:, :1], past_key_values=cache, token_type_ids=PROMPT[:, :1])
    assert report(model).eager == {"argument token_type_ids": 1}


@torch.no_grad()
@pytest.mark.parametrize(
    "options, why",
    [
        ({"word_embed_proj_dim": 32}, "the decoder has a project_in"),
        ({"_remove_final_layer_norm": True}, "the last norm is a NoneType"),
    ],
)
def test_ends_of_a_decoder_that_are_not_known_run_by_layers(options: dict[str, Any], why: str) -> None:
    stock = random_model(config("OPTConfig", **{**OPT, **options}))
    model = torch_foundry.patch(copy.deepcopy(stock))
    assert tokens(model) == tokens(stock)
    seen = report(model)
    assert seen.layers == 2 and not seen.fallbacks and any(why in found for found in seen.eager), str(seen)


def test_published_sizes_are_whole() -> None:
    for layers, hidden, heads in ((12, 768, 12), (24, 1024, 16), (36, 1280, 20), (48, 1600, 25)):
        with torch.device("meta"):
            model = GPT2LMHeadModel(GPT2Config(n_layer=layers, n_embd=hidden, n_head=heads))
        seen = report(torch_foundry.patch(model))
        assert seen.layers == layers and not seen.not_replaced, str(seen)
    for layers, hidden, heads in ((12, 768, 12), (24, 2048, 32), (32, 2560, 32), (32, 4096, 32)):
        sizes = {"num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
        with torch.device("meta"):
            model = OPTForCausalLM(OPTConfig(**sizes, ffn_dim=4 * hidden, word_embed_proj_dim=hidden))
        seen = report(torch_foundry.patch(model))
        assert seen.layers == layers and not seen.not_replaced, str(seen)
