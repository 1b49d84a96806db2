"""GGUF files whose tensors are not the model's parameters as they lie: gpt-oss, hybrids, GraniteMoE."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf import GGMLQuantizationType as Type

import torch_foundry
from tests.exact import assert_found_as_exact
from tests.hf import tiny_cases, tiny_models
from tests.io.gguf_models import LAID_OUT, Keys, Tensors, contents, make, write_file
from torch_foundry import LoadError, save_gguf
from torch_foundry.nn import FoundryExperts, FoundryLinear

stock = functools.cache(make)


def load(path: Path, **options: Any) -> Any:
    return torch_foundry.load(path, device="cpu", progress=False, **options)[0]


def dense(model: Any) -> dict[str, torch.Tensor]:
    return torch_foundry.unpatch(copy.deepcopy(model), dequantize=True).state_dict()


@pytest.mark.parametrize("name", LAID_OUT)
def test_the_parameters_are_those_that_the_file_was_made_from(name: str, tmp_path: Path) -> None:
    keys, tensors = contents(name, stock(name), lambda _: "f32")
    write_file(tmp_path / "model.gguf", LAID_OUT[name].arch, keys, tensors)
    model, expected = load(tmp_path / "model.gguf"), stock(name)
    assert type(model.config) is type(expected.config)
    state = dense(model)
    assert state.keys() == expected.state_dict().keys()
    for key, value in expected.state_dict().items():
        lossy = "norm" in key or "A_log" in key  # + 1, exp
        torch.testing.assert_close(state[key], value, rtol=0, atol=1e-6 if lossy else 0, msg=key)
    model.generation_config.eos_token_id = None
    assert tiny_models.tokens(model) == tiny_models.tokens(expected)
    assert tiny_models.fused_all(model) != (name == "command-r-normed")  # LayerNorms of heads are not fused
    with torch.no_grad():
        logits = expected(tiny_models.PROMPT).logits
        assert (model(tiny_models.PROMPT).logits - logits).abs().max() < 1e-4 * logits.std()
    save_gguf(model, tmp_path / "again.gguf")
    read = in_one({t.name: t.data for t in gguf.GGUFReader(tmp_path / "again.gguf").tensors}, tensors)
    if name == "deepseek2-lite":  # a dense matrix of keys and values is written as two
        assert {key.split(".")[2] for key in read.keys() ^ tensors.keys()} == {"attn_kv_b", "attn_k_b", "attn_v_b"}
        return
    assert read.keys() == tensors.keys()
    for key, (value, _) in tensors.items():
        np.testing.assert_allclose(read[key], value, rtol=1e-6, atol=1e-6, err_msg=key)


def test_convolutions_may_have_four_dimensions(tmp_path: Path) -> None:
    """As llama.cpp's converter writes Kimi Linear's; its quantizer drops the first."""
    keys, tensors = contents("kimi-linear", stock("kimi-linear"), lambda _: "f32")
    for key in [key for key in tensors if "conv1d" in key]:
        tensors[key] = tensors[key][0][None], Type.F32
    write_file(tmp_path / "model.gguf", "kimi-linear", keys, tensors)
    state, expected = dense(load(tmp_path / "model.gguf")), stock("kimi-linear").state_dict()
    assert all(torch.equal(state[key], value) for key, value in expected.items() if "conv1d" in key)


def in_one(read: dict[str, np.ndarray], tensors: Tensors) -> dict[str, np.ndarray]:
    """With gate and up of experts in one tensor, where `tensors` have them so: files are written with two."""
    found = dict(read)
    for key in tensors:
        if key.endswith("gate_up_exps.weight") and key not in read:
            gate, up = (found.pop(key.replace("gate_up", part)) for part in ("gate", "up"))
            found[key] = np.concatenate((gate, up), 1)
    return found


def packing(tensor: str) -> str:
    if "ffn_gate_inp" in tensor or "_k_b." in tensor or "_v_b." in tensor:  # which routes, or is turned
        return "f32"
    return "q4_0" if "_exps" in tensor else "q8_0"


@pytest.mark.parametrize("name", LAID_OUT)
def test_what_is_packed_stays_packed(name: str, tmp_path: Path) -> None:
    """It has the values of a dense file of the same values, and is written as it was."""
    keys, tensors = contents(name, stock(name), packing)
    if name == "gpt-oss":  # as they are published
        for key, (data, kind) in tensors.items():
            if kind == Type.Q4_0:
                values = gguf.dequantize(data, kind)
                tensors[key] = gguf.quantize(values, Type.MXFP4), Type.MXFP4
    arch = LAID_OUT[name].arch
    write_file(tmp_path / "model.gguf", arch, keys, tensors)
    values = {key: (gguf.dequantize(data, kind), Type.F32) for key, (data, kind) in tensors.items()}
    write_file(tmp_path / "dense.gguf", arch, keys, values)
    expected = load(tmp_path / "dense.gguf", patch=False)
    for mmap in (False, True):
        model = load(tmp_path / "model.gguf", mmap=mmap)
        state = dense(model)
        for key, value in expected.state_dict().items():
            assert torch.equal(state[key], value), key
        for path, module in model.named_modules():
            assert (
                type(module) is not torch.nn.Linear
                or module.out_features == 1
                or any(part in path for part in ("router", "gate.wg", "kv_b_proj"))
            ), path
            if isinstance(module, FoundryExperts):
                assert set(module.formats) == {"mxfp4" if name == "gpt-oss" else "q4_0"}
        with torch.no_grad():
            found, exact = (m(tiny_models.PROMPT).logits for m in (model, expected))
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-4)
    save_gguf(model, tmp_path / "again.gguf")
    again = gguf.GGUFReader(tmp_path / "again.gguf").tensors
    kinds = {each.name: each.tensor_type for each in again}
    for key, written in in_one({each.name: each.data for each in again}, tensors).items():
        data, kind = tensors[key]
        assert kinds.get(key, Type.Q4_0) == kind
        if data.dtype == np.uint8:
            assert written.tobytes() == data.tobytes(), key


def test_multipliers_are_part_of_the_weights(tmp_path: Path) -> None:
    """Falcon-H1's. The model of the file has none and is as exact as the one that has."""
    settings = {**LAID_OUT["falcon-h1"].options, **tiny_cases.FALCON_H1, "attention_in_multiplier": 1.5}
    model = tiny_models.random_model(tiny_models.config("FalconH1Config", **settings))
    keys, tensors = contents("falcon-h1", model, lambda _: "f32")
    write_file(tmp_path / "model.gguf", "falcon-h1", keys, tensors)
    found = load(tmp_path / "model.gguf")
    ones = {name for name, value in found.config.to_dict().items() if "multiplier" in name and value == 1}
    assert len(ones) == 7 and {*found.config.mlp_multipliers, *found.config.ssm_multipliers} == {1.0}
    with torch.no_grad():
        assert_found_as_exact(found(tiny_models.PROMPT).logits, lambda m: m(tiny_models.PROMPT).logits, model)
    found.generation_config.eos_token_id = None
    assert tiny_models.tokens(found) == tiny_models.tokens(model) and tiny_models.fused_all(found)


def test_a_config_that_says_twice_how_heads_are_rotated(tmp_path: Path) -> None:
    """Mistral 4's own default."""
    settings = {key: value for key, value in LAID_OUT["mistral4"].options.items() if key != "rope_parameters"}
    settings["max_position_embeddings"] = 1 << 20
    torch.manual_seed(0)
    model = transformers.Mistral4ForCausalLM(tiny_models.config("Mistral4Config", **settings)).eval()
    assert {"type", "max_position_embeddings"} <= model.config.rope_parameters.keys()
    save_gguf(model, tmp_path / "model.gguf")
    found = load(tmp_path / "model.gguf", allow=("VOCAB_MISSING",))
    assert tiny_models.tokens(found) == tiny_models.tokens(model)
    model.config.rope_parameters["max_position_embeddings"] = 7
    with pytest.raises(ValueError, match=r"rope_parameters: GGUF can't say"):
        save_gguf(model, tmp_path / "model.gguf")


def test_queries_grow_as_of_the_model_where_files_do_not_say(tmp_path: Path) -> None:
    keys, tensors = contents("mistral4", stock("mistral4"), lambda _: "f32")
    for value, expected in ((None, 0.1), (0.0, 0.0), (0.4, 0.4)):
        keys["mistral4.attention.temperature_scale"] = value
        said = {key: each for key, each in keys.items() if each is not None}
        write_file(tmp_path / "model.gguf", "mistral4", said, tensors)
        model = load(tmp_path / "model.gguf")
        assert model.config.rope_parameters["llama_4_scaling_beta"] == expected
        model.generation_config.eos_token_id = None
        assert len(tiny_models.tokens(model)) and tiny_models.fused_all(model)


def test_keys_that_are_turned_become_dense(tmp_path: Path) -> None:
    """Their blocks lie along what is rows of the matrix that latents are multiplied by."""
    model = make("deepseek2")
    keys, tensors = contents("deepseek2", model, lambda key: "q8_0" if "_k_b" in key or "_v_b" in key else "f32")
    write_file(tmp_path / "model.gguf", "deepseek2", keys, tensors)
    heads = [gguf.dequantize(*tensors[f"blk.1.attn_{part}_b.weight"]) for part in "kv"]
    expected = np.concatenate((heads[0].swapaxes(1, 2), heads[1]), 1).reshape(-1, 64)
    found = load(tmp_path / "model.gguf", dtype=torch.float32).model.layers[1].self_attn.kv_b_proj.weight
    assert torch.equal(found, torch.from_numpy(expected))


def test_two_types_in_one_parameter(tmp_path: Path) -> None:
    """As llama.cpp quantises Qwen3-Next: it becomes dense."""
    keys, tensors = contents("qwen3next", stock("qwen3next"), lambda key: "q4_0" if "attn_gate" in key else "q8_0")
    write_file(tmp_path / "model.gguf", "qwen3next", keys, tensors)
    values = {key: (gguf.dequantize(data, kind), Type.F32) for key, (data, kind) in tensors.items()}
    write_file(tmp_path / "dense.gguf", "qwen3next", keys, values)
    model, expected = load(tmp_path / "model.gguf"), load(tmp_path / "dense.gguf", patch=False)
    name = "model.layers.0.linear_attn.in_proj_qkvz.weight"
    assert torch.equal(model.get_parameter(name), expected.get_parameter(name))
    assert isinstance(model.model.layers[0].linear_attn.out_proj, FoundryLinear)


def test_columns_that_blocks_keep_together(tmp_path: Path) -> None:
    """A block of 256 has several value heads, so columns stay where they are, and what they multiply is reordered."""
    values = tiny_cases.HYBRIDS["qwen3_5"].options | {"linear_num_value_heads": 16}
    model = tiny_models.random_model(tiny_models.config("Qwen3_5TextConfig", **values))
    save_gguf(model, tmp_path / "dense.gguf")
    read = gguf.GGUFReader(tmp_path / "dense.gguf")
    out = next(t for t in read.tensors if t.name == "blk.0.ssm_out.weight")
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (64, 2, 210), np.uint8)
    blocks[..., 208:] = np.frombuffer(np.float16(0.001).tobytes(), np.uint8)
    rows = blocks.reshape(64, 420)
    assert out.shape.tolist() == [512, 64]
    tensors = {t.name: (t.data, t.tensor_type) for t in read.tensors}
    keys = {field.name: field for field in read.fields.values()}
    own: Keys = {key: field.contents() for key, field in keys.items() if key.startswith("qwen35.")}
    write_file(tmp_path / "packed.gguf", "qwen35", own, {**tensors, out.name: (rows, Type.Q6_K)})
    exact: Tensors = {**tensors, out.name: (gguf.dequantize(rows, Type.Q6_K), Type.F32)}
    write_file(tmp_path / "values.gguf", "qwen35", own, exact)
    allow = ("VOCAB_MISSING",)
    packed, expected = (load(tmp_path / f"{kind}.gguf", allow=allow) for kind in ("packed", "values"))
    layer = packed.model.layers[0].linear_attn.out_proj
    assert layer.format == "q6_k" and layer.order is not None
    assert torch.equal(layer.dequantized(torch.float32), expected.model.layers[0].linear_attn.out_proj.weight)
    assert tiny_models.tokens(packed) == tiny_models.tokens(expected) and tiny_models.fused_all(packed)
    save_gguf(packed, tmp_path / "again.gguf")
    again = next(t for t in gguf.GGUFReader(tmp_path / "again.gguf").tensors if t.name == out.name)
    assert again.data.tobytes() == rows.tobytes()


def test_layers_that_predict_further_tokens_are_left_out(tmp_path: Path) -> None:
    keys, tensors = contents("qwen35", stock("qwen35"), lambda _: "f32")
    keys |= {"qwen35.block_count": 3, "qwen35.nextn_predict_layers": 1}
    tensors["blk.2.nextn.eh_proj.weight"] = np.ones((64, 128), np.float32), Type.F32
    write_file(tmp_path / "model.gguf", "qwen35", keys, tensors)
    assert load(tmp_path / "model.gguf").config.num_hidden_layers == 2


B0, B1 = "blk.0.", "blk.1."
FAULTS: list[tuple[str, Callable[[Tensors], Any], str, str]] = [
    ("gpt-oss", lambda t: t.pop(B0 + "attn_sinks.weight"), "TENSOR_MISSING", B0 + "attn_sinks.weight"),
    ("gpt-oss", lambda t: t.pop(B0 + "ffn_up_exps.bias"), "TENSOR_MISSING", B0 + "ffn_up_exps.bias"),
    ("gpt-oss", lambda t: swap(t, "ffn_up_exps.bias", (4, 95)), "SHAPE", B0 + "ffn_up_exps.bias"),
    ("gpt-oss", lambda t: swap(t, "ffn_down_exps.bias", (4, 64), Type.Q8_0), "TENSOR_TYPE", B0 + "ffn_down_exps.bias"),
    ("gpt-oss", lambda t: swap(t, "attn_sinks.weight", (5,)), "SHAPE", B0 + "attn_sinks.weight"),
    ("gpt-oss", lambda t: swap(t, "ffn_gate_exps.bias", (4, 96), fill=np.nan), "NONFINITE", B0 + "ffn_gate_exps.bias"),
    ("qwen35", lambda t: swap(t, "ssm_a", (6,), fill=0.5), "NONFINITE", B0 + "ssm_a"),
    ("qwen35", lambda t: swap(t, "ssm_a", (6,), fill=np.inf), "NONFINITE", B0 + "ssm_a"),
    ("qwen35", lambda t: swap(t, "ssm_a", (5,)), "SHAPE", B0 + "ssm_a"),
    ("qwen35", lambda t: swap(t, "ssm_dt.bias", (6, 2)), "SHAPE", B0 + "ssm_dt.bias"),
    ("qwen35", lambda t: swap(t, "ssm_conv1d.weight", (256, 3)), "SHAPE", B0 + "ssm_conv1d.weight"),
    ("qwen35", lambda t: swap(t, "ssm_out.weight", (64, 160)), "SHAPE", B0 + "ssm_out.weight"),
    ("qwen35", lambda t: t.pop(B0 + "ssm_beta.weight"), "TENSOR_MISSING", B0 + "ssm_beta.weight"),
    ("qwen35", lambda t: swap(t, "attn_q.weight", (256, 64)), "TENSOR_EXTRA", B0 + "attn_q.weight"),
    ("falcon-h1", lambda t: t.pop(B0 + "ffn_norm"), "TENSOR_MISSING", B0 + "ffn_norm"),
    ("falcon-h1", lambda t: t.pop("blk.1.ssm_conv1d.bias"), "TENSOR_MISSING", "blk.1.ssm_conv1d.bias"),
    ("falcon-h1", lambda t: swap(t, "attn_q.bias", (128,)), "TENSOR_EXTRA", B0 + "attn_q.bias"),
    ("falcon-h1", lambda t: swap(t, "ssm_in.weight", (391, 64)), "SHAPE", B0 + "ssm_in.weight"),
    ("falcon-h1", lambda t: swap(t, "ssm_a", (8, 1), fill=0.5), "NONFINITE", B0 + "ssm_a"),
    ("falcon-h1-normed", lambda t: t.pop("blk.1.ssm_norm.weight"), "TENSOR_MISSING", "blk.1.ssm_norm.weight"),
    ("falcon-h1-normed", lambda t: swap(t, "ssm_norm.weight", (1, 128)), "SHAPE", B0 + "ssm_norm.weight"),
    (
        "mistral4",
        lambda t: swap(t, B1 + "ffn_gate_up_exps.weight", (8, 60, 64)),
        "SHAPE",
        B1 + "ffn_gate_up_exps.weight",
    ),
    ("mistral4", lambda t: swap(t, B1 + "ffn_up_exps.weight", (8, 32, 64)), "TENSOR_EXTRA", B1 + "ffn_up_exps.weight"),
    ("mistral4", lambda t: t.pop(B1 + "ffn_gate_up_exps.weight"), "TENSOR_MISSING", B1 + "ffn_gate_exps.weight"),
    ("mistral4", lambda t: swap(t, B1 + "exp_probs_b.bias", (8,)), "TENSOR_EXTRA", B1 + "exp_probs_b.bias"),
    ("qwen3next", lambda t: swap(t, "attn_gate.weight", (224, 64)), "SHAPE", B0 + "attn_gate.weight"),
    ("qwen3next", lambda t: t.pop(B0 + "attn_gate.weight"), "TENSOR_MISSING", B0 + "attn_gate.weight"),
]


def swap(tensors: Tensors, name: str, shape: tuple[int, ...], kind: Type = Type.F32, fill: float = -1.0) -> None:
    values = np.full(shape, fill, np.float32)
    tensors[name if name.startswith("blk") else B0 + name] = gguf.quantize(values, kind), kind


@pytest.mark.parametrize(("name", "change", "code", "field"), FAULTS)
def test_faults(name: str, change: Callable[[Tensors], Any], code: str, field: str, tmp_path: Path) -> None:
    keys, tensors = contents(name, stock(name), lambda _: "f32")
    change(tensors)
    write_file(tmp_path / "model.gguf", LAID_OUT[name].arch, keys, tensors)
    with pytest.raises(LoadError) as caught:
        load(tmp_path / "model.gguf", patch=False)
    assert (caught.value.code, caught.value.field) == (code, field)


@pytest.mark.parametrize(
    ("name", "key", "value", "code"),
    [
        ("falcon-h1", "ssm.inner_size", None, "HP_MISSING"),
        ("falcon-h1", "ssm.group_count", None, "HP_MISSING"),
        ("falcon-h1", "ssm.time_step_rank", 5, "HP_RANGE"),
        ("falcon-h1", "attention.layer_norm_rms_epsilon", None, "HP_MISSING"),
        # as files of before its multipliers were part of the weights
        ("falcon-h1", "mlp_gate_multiplier", 0.5, "HP_RANGE"),
        ("falcon-h1", "ssm.has_mup", True, "HP_RANGE"),
        ("falcon-h1", "mamba_norm_before_gate", True, "HP_RANGE"),
        ("mistral4", "attention.kv_lora_rank", None, "HP_MISSING"),
        ("mistral4", "expert_shared_count", None, "HP_MISSING"),
        ("mistral4", "expert_gating_func", 2, "HP_RANGE"),
        ("mistral4", "rope.scaling.yarn_log_multiplier", None, "HP_MISSING"),
        ("mistral4", "rope.scaling.type", "linear", "HP_RANGE"),
        ("mistral4", "attention.temperature_length", 16, "HP_RANGE"),
        ("mistral4", "attention.temperature_scale", -0.5, "HP_RANGE"),
        ("deepseek2", "attention.temperature_scale", -0.5, "HP_RANGE"),
        ("deepseek2", "attention.temperature_length", 8, "HP_RANGE"),
    ],
)
def test_settings_of_others_that_are_refused(name: str, key: str, value: Any, code: str, tmp_path: Path) -> None:
    assert_refused(name, key, value, code, tmp_path)


def assert_refused(name: str, key: str, value: Any, code: str, folder: Path) -> None:
    keys, tensors = contents(name, stock(name), lambda _: "f32")
    full = f"{LAID_OUT[name].arch}.{key}"
    keys[full] = value
    write_file(folder / "model.gguf", LAID_OUT[name].arch, {k: v for k, v in keys.items() if v is not None}, tensors)
    with pytest.raises(LoadError) as caught:
        load(folder / "model.gguf", patch=False)
    assert (caught.value.code, caught.value.field) == (code, full)


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("ssm.time_step_rank", 5, "HP_RANGE"),
        ("ssm.inner_size", 193, "HP_RANGE"),
        ("ssm.group_count", 0, "HP_RANGE"),
        ("ssm.conv_kernel", None, "HP_MISSING"),
        ("full_attention_interval", 0, "HP_RANGE"),
        ("nextn_predict_layers", 2, "HP_RANGE"),
        ("rope.dimension_sections", [1, 1], "HP_RANGE"),
        ("rope.dimension_sections", [1, 1, 1, 0], "HP_RANGE"),
        ("rope.dimension_sections", [-1, 2, 3, 0], "HP_RANGE"),
    ],
)
def test_settings_that_are_refused(key: str, value: Any, code: str, tmp_path: Path) -> None:
    assert_refused("qwen35", key, value, code, tmp_path)
