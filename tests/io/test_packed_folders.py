"""Folders of models that others have quantised, through torch_foundry.load: weights stay packed, results are those of a
stock model with the values that packing has left."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

import torch_foundry
from tests.exact import assert_found_as_exact
from tests.hf import tiny_models
from tests.io import words
from tests.io.quantised import Tensors, as_bytes, bit_stream
from torch_foundry import LoadError, quant
from torch_foundry.nn import FoundryEmbedding, FoundryExperts, FoundryLinear


def halves(dtype: torch.dtype, blocks: Tensor, at: int) -> Tensor:
    """A number of each block [rows, groups, bytes]."""
    return blocks[..., at : at + dtype.itemsize].contiguous().view(dtype).squeeze(-1)


def codes_of(blocks: Tensor) -> Tensor:
    """Codes of four bits behind a head of four bytes: [rows, K]."""
    return torch.stack((blocks[..., 4:] & 15, blocks[..., 4:] >> 4), -1).flatten(1)


def mlx(name: str, blocks: Tensor) -> Tensors:
    words = blocks[..., 4:].contiguous().view(torch.uint32).flatten(1)
    scales, biases = (halves(torch.bfloat16, blocks, at) for at in (0, 2))
    return {f"{name}.weight": words, f"{name}.scales": scales, f"{name}.biases": biases}


def places_of(name: str, columns: int) -> Tensor:
    """Where each column lies when groups lie together: for some, each group has columns from everywhere."""
    if "down_proj" in name:
        return torch.randperm(columns, generator=torch.Generator().manual_seed(0))
    return torch.arange(columns)


def gptq(name: str, blocks: Tensor) -> Tensors:
    zeros = halves(torch.int16, blocks, 2).t()
    places = places_of(name, blocks.shape[1] * 32)
    return {
        f"{name}.qweight": bit_stream(codes_of(blocks)[:, places], 4).t(),
        f"{name}.qzeros": bit_stream((zeros - 1) % 16, 4),
        f"{name}.scales": halves(torch.float16, blocks, 0).t(),
        f"{name}.g_idx": (places // 32).int(),
    }


def awq(name: str, blocks: Tensor) -> Tensors:
    def packed(matrix: Tensor) -> Tensor:
        return bit_stream(matrix.reshape(matrix.shape[0], -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]].flatten(1), 4)

    zeros, scales = halves(torch.int16, blocks, 2).t(), halves(torch.float16, blocks, 0).t()
    return {f"{name}.qweight": packed(codes_of(blocks).t()), f"{name}.qzeros": packed(zeros), f"{name}.scales": scales}


def nf4(name: str, blocks: Tensor) -> Tensors:
    shape = [blocks.shape[0], blocks.shape[1] * 64]
    table = quant.dequantize(torch.tensor([[0, 0, 128, 63, *range(0, 256, 17), *[0] * 16]], dtype=torch.uint8), "nf4")
    stored = blocks[..., 4:]
    described = {"quant_type": "nf4", "blocksize": 64, "shape": shape, "dtype": "float32"}
    return {
        f"{name}.weight": (stored >> 4 | stored << 4).reshape(-1, 1),
        f"{name}.weight.absmax": halves(torch.float32, blocks, 0).flatten(),
        f"{name}.weight.quant_map": table[0, :32:2].contiguous(),
        f"{name}.weight.quant_state.bitsandbytes__nf4": as_bytes(described),
    }


def fp8(name: str, blocks: Tensor) -> Tensors:
    codes = blocks[..., 4:].flatten(1).view(torch.float8_e4m3fn)
    return {f"{name}.weight": codes, f"{name}.weight_scale_inv": halves(torch.float32, blocks, 0)}


Writer = Callable[[str, Tensor], Tensors]
BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
METHODS: dict[str, tuple[Writer, str, dict[str, Any], bool]] = {  # the last: whether embeddings are packed too
    "mlx": (mlx, "affine4_g32_bf16", {"bits": 4, "group_size": 32}, True),
    "gptq": (gptq, "int4_g32", {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}, False),
    "awq": (awq, "int4_g32", {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, False),
    "bitsandbytes": (nf4, "nf4", BNB, False),
    "fp8": (fp8, "fp8_g32", {"quant_method": "fp8", "weight_block_size": [1, 32]}, False),
}


def write(method: str, family: str, folder: Path) -> Any:
    """A folder as `method` writes it; the stock model with the values that its weights have."""
    writer, fmt, settings, ends = METHODS[method]
    twin = copy.deepcopy(tiny_models.shared(family))
    state = {name: tensor for name, tensor in twin.state_dict().items() if name not in twin.all_tied_weights_keys}
    for name, module in twin.named_modules():
        packed = isinstance(module, nn.Embedding | nn.Linear) and (ends or "layers" in name)
        if not packed or f"{name}.weight" not in state or module.weight.shape[1] % quant.get_format(fmt).block_size:
            continue
        blocks = quant.quantize(module.weight, fmt)
        values = quant.dequantize(blocks, fmt)
        del state[f"{name}.weight"]
        state |= writer(name, blocks.view(*blocks.shape[:1], -1, quant.get_format(fmt).block_bytes))
        module.weight.data.copy_(values[:, places_of(name, values.shape[1])] if method == "gptq" else values)
    twin.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": settings}
    if method == "mlx":
        config["quantization"] = settings
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, folder / "model.safetensors")
    words.small().save_pretrained(folder)
    return twin


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["llama-biased", "qwen2"])  # qwen2: tied
def test_loaded_packed(method: str, family: str, tmp_path: Path) -> None:
    twin = write(method, family, tmp_path)
    model, tokenizer = torch_foundry.load(tmp_path, device="cpu", progress=False)
    assert tokenizer("a").input_ids
    formats = {m.format for m in model.modules() if isinstance(m, FoundryLinear | FoundryEmbedding)}
    assert formats == {METHODS[method][1]}
    ids = tiny_models.ids(2, 9)
    with torch.no_grad():
        assert_found_as_exact(model(ids).logits, lambda each: each(ids).logits, twin)
    assert tiny_models.tokens(model) == tiny_models.tokens(twin)
    report = torch_foundry.report(model)
    assert report.layers == 2 and report.fused and report.steps and not report.fallbacks, str(report)

    model.save_pretrained(tmp_path / "ours")
    tokenizer.save_pretrained(tmp_path / "ours")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    ours = torch_foundry.load(tmp_path / "ours", device="cpu", progress=False)[0]
    for other in (again, ours):
        assert tiny_models.tokens(other) == tiny_models.tokens(twin)
        found = {n: getattr(m, "format", None) for n, m in other.named_modules()}
        assert found == {n: getattr(m, "format", None) for n, m in model.named_modules()}


MOE = {
    "qwen3_moe": ("Qwen3MoeConfig", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}),
    "mixtral": ("MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


@pytest.mark.parametrize("family", MOE)
@pytest.mark.parametrize("method", ["mlx", "awq"])
def test_experts(method: str, family: str, tmp_path: Path) -> None:
    """mlx stacks them, and packs the router, which is dense here; others have each expert's matrices apart."""
    settings, more = MOE[family]
    twin = tiny_models.random_model(tiny_models.config(settings, **more))
    writer, fmt, config, _ = METHODS[method]
    block = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"} if family == "mixtral" else {}
    prefix = "block_sparse_moe" if family == "mixtral" else "mlp"
    state = {name: tensor.clone() for name, tensor in twin.state_dict().items()}
    for i, layer in enumerate(twin.model.layers):
        inside = f"model.layers.{i}.mlp"
        gate_up, down = (state.pop(f"{inside}.experts.{name}") for name in ("gate_up_proj", "down_proj"))
        router = state.pop(f"{inside}.gate.weight")
        there = f"model.layers.{i}.{prefix}"
        values: dict[str, Tensor] = {}
        for name, dense in zip(("gate_proj", "up_proj", "down_proj"), (*gate_up.chunk(2, 1), down), strict=True):
            packed = [quant.quantize(expert, fmt) for expert in dense]
            values[name] = torch.stack([quant.dequantize(each, fmt) for each in packed])
            blocks = [each.view(each.shape[0], -1, quant.get_format(fmt).block_bytes) for each in packed]
            if method == "mlx":
                parts = [writer(f"{there}.switch_mlp.{name}", each) for each in blocks]
                state |= {key: torch.stack([part[key] for part in parts]) for key in parts[0]}
            else:
                for e, each in enumerate(blocks):
                    state |= writer(f"{there}.experts.{e}.{block.get(name, name)}", each)
        if method == "mlx":
            packed_router = quant.quantize(router, fmt)
            router = quant.dequantize(packed_router, fmt)
            state |= writer(f"{there}.gate", packed_router.view(router.shape[0], -1, 20))
        else:
            state[f"{there}.gate.weight"] = router
        with torch.no_grad():
            layer.mlp.gate.weight.copy_(router)
            layer.mlp.experts.gate_up_proj.copy_(torch.cat((values["gate_proj"], values["up_proj"]), 1))
            layer.mlp.experts.down_proj.copy_(values["down_proj"])
    twin.config.save_pretrained(tmp_path)
    own = json.loads((tmp_path / "config.json").read_text()) | {"quantization_config": config}
    (tmp_path / "config.json").write_text(json.dumps(own))
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "model.safetensors")
    words.small().save_pretrained(tmp_path)

    model = torch_foundry.load(tmp_path, device="cpu", progress=False)[0]
    experts = [module for module in model.modules() if isinstance(module, FoundryExperts)]
    assert len(experts) == len(twin.model.layers) and {m.formats for m in experts} == {(fmt,) * 3}
    assert tiny_models.tokens(model) == tiny_models.tokens(twin)


def test_mxfp4_of_gpt_oss(tmp_path: Path) -> None:
    """Blocks and scales as they are published stay packed; transformers' own unpacking says what they mean."""
    twin = tiny_models.build("gpt_oss")
    state = {name: tensor.contiguous() for name, tensor in twin.state_dict().items()}
    g = torch.Generator().manual_seed(0)
    for i, layer in enumerate(twin.model.layers):
        for name in ("gate_up_proj", "down_proj"):
            own: Any = getattr(layer.mlp.experts, name)
            experts, inputs, outputs = own.shape
            path = f"model.layers.{i}.mlp.experts.{name}"
            blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=g, dtype=torch.uint8)
            scales = torch.randint(119, 124, blocks.shape[:-1], generator=g, dtype=torch.uint8)
            own.data = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32).contiguous()
            del state[path]
            state |= {f"{path}_blocks": blocks, f"{path}_scales": scales}
    twin.config.save_pretrained(tmp_path)
    own = json.loads((tmp_path / "config.json").read_text())
    own["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}
    (tmp_path / "config.json").write_text(json.dumps(own))
    save_file(state, tmp_path / "model.safetensors")
    words.small().save_pretrained(tmp_path)

    model, tokenizer = torch_foundry.load(tmp_path, device="cpu", progress=False)
    experts = [module for module in model.modules() if isinstance(module, FoundryExperts)]
    assert len(experts) == 2 and {m.formats for m in experts} == {("mxfp4",) * 3}
    held = sum(t.nbytes for t in (*model.parameters(), *model.buffers()))
    assert held <= 1.05 * (tmp_path / "model.safetensors").stat().st_size
    for length in (9, 40):
        ids = tiny_models.ids(2, length)
        with torch.no_grad():
            assert_found_as_exact(model(ids).logits, lambda each, ids=ids: each(ids).logits, twin)
    assert tiny_models.tokens(model) == tiny_models.tokens(twin) and tiny_models.fused_all(model)
    dense = copy.deepcopy(model)
    torch_foundry.unpatch(dense, dequantize=True)
    for name, value in dense.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name]), name
    model.save_pretrained(tmp_path / "ours")
    tokenizer.save_pretrained(tmp_path / "ours")
    for again in (
        AutoModelForCausalLM.from_pretrained(tmp_path / "ours"),
        torch_foundry.load(tmp_path / "ours", device="cpu", progress=False)[0],
    ):
        again.generation_config.eos_token_id = None
        assert tiny_models.tokens(again) == tiny_models.tokens(twin)


@pytest.mark.parametrize("method", ["mlx", "fp8"])
def test_beside_the_weight_little_is_held(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are put together a few at a time: no tensor of a large part of the weight is made but the weight itself."""
    from torch_foundry.io.packed import blocks

    monkeypatch.setattr(blocks, "_CHUNK", 1024)
    write(method, "llama", tmp_path)
    largest: list[int] = []
    cat = torch.cat

    def counting(tensors: Any, *args: Any) -> Tensor:
        result = cat(tensors, *args)
        largest.append(result.nbytes)
        return result

    monkeypatch.setattr(torch, "cat", counting)
    torch_foundry.load(tmp_path, device="cpu", progress=False, patch=False)
    assert largest and max(largest) <= 1024


def test_unknown_methods_are_named(tmp_path: Path) -> None:
    write("awq", "llama", tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["quant_method"] = "hqq"
    path.write_text(json.dumps(config))
    known = r"mlx, .*, fbgemm_fp8, compressed-tensors, modelopt, torch_foundry \(import torch_foundry .*\), foundry"
    with pytest.raises(LoadError, match=f"expected {known}, found 'hqq'"):
        torch_foundry.load(tmp_path, device="cpu", progress=False)
