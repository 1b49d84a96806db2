"""A model's own MTP head drafts: the text is that of generate() without, whatever the head says."""

from __future__ import annotations

import copy
import itertools
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import torch_foundry
from tests.hf.tiny_cases import VOCAB
from tests.hf.tiny_models import build, ids
from torch_foundry.core.load_errors import LoadError
from torch_foundry.generation import speculation
from torch_foundry.generation.draft_length import DraftLengthController
from torch_foundry.generation.mtp import MTPDrafter
from torch_foundry.hf.api import report
from torch_foundry.models.state import FallbackWarning

try:
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel
except ImportError:
    MtpCache = MtpModel = None

pytestmark = pytest.mark.usefixtures("quiet")
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9}
OWN_NAMES = {"qwen3_5", "qwen3_next", "qwen3_5_moe"}
FAMILIES = [*sorted(OWN_NAMES), "deepseek_v3", "glm4_moe"]
SIZE = 64
ALONE = torch.cat([torch.eye(SIZE), torch.zeros(SIZE, SIZE)], dim=1)  # a head that looks at no hidden state


@pytest.fixture(autouse=True)
def never_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the clock, by which every step takes as long."""
    monkeypatch.setattr(speculation, "time", SimpleNamespace(perf_counter=itertools.count().__next__))
    monkeypatch.setattr(DraftLengthController, "pays", lambda *_: True)


def weak(model: Any, factor: float) -> Any:
    """Let the layers of `model` add little to the embeddings, so that its head can be right without training."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if re.search(r"layers.*(o_proj|out_proj|down_proj)", name):
                weight.mul_(factor)
    return model


def folder(
    path: Path, family: str, factor: float = 0.1, own_factor: float = 1.0, **changes: torch.Tensor | None
) -> Path:
    """A saved model with an MTP head that makes of a token what the model's last layer makes of it alone, nearly.

    own_factor: on what the head's attention adds. changes: weights of the head by the end of their names, _ for ., in
    place of those; None: without.
    """
    sizes = {"first_k_dense_replace": 1} if family == "deepseek_v3" else {}
    model = weak(build(family, **sizes), factor)
    model.save_pretrained(path)
    tensors = load_file(path / "model.safetensors")
    own, prefix = family in OWN_NAMES, "model.layers.1."
    layer = {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
    if family == "qwen3_next":  # whose second layer has attention, and no experts, unlike the first and the head
        first = {
            n.removeprefix("model.layers.0."): t for n, t in tensors.items() if n.startswith("model.layers.0.mlp.")
        }
        layer = {name: t for name, t in layer.items() if not name.startswith("mlp.")} | first
    layer["self_attn.o_proj.weight"] = layer["self_attn.o_proj.weight"] * own_factor
    generator = torch.Generator().manual_seed(7)
    gain = torch.zeros(SIZE) if own else torch.ones(SIZE)  # Qwen's add 1
    beside = {
        "eh_proj": torch.cat([torch.eye(SIZE), 0.02 * torch.randn(SIZE, SIZE, generator=generator)], dim=1),
        "shared_head.norm": tensors["model.norm.weight"],
        "enorm": gain,
        "hnorm": gain + 0.5 * torch.randn(SIZE, generator=generator),
    }
    if own:
        names = {
            **{"eh_proj": "fc", "shared_head.norm": "norm"},
            **{"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden"},
        }
        head = {f"mtp.{names[name]}.weight": t for name, t in beside.items()}
        head |= {f"mtp.layers.0.{name}": t for name, t in layer.items()}
    else:
        at = f"model.layers.{model.config.num_hidden_layers}"
        beside |= {"embed_tokens": tensors["model.embed_tokens.weight"], "shared_head.head": tensors["lm_head.weight"]}
        head = {f"{at}.{name}.weight": t for name, t in beside.items()} | {f"{at}.{n}": t for n, t in layer.items()}
    for name, tensor in changes.items():
        (key,) = [key for key in head if key.replace(".", "_").endswith(name)]
        del head[key]
        if tensor is not None:
            head[key] = tensor
    save_file({name: t.clone() for name, t in (tensors | head).items()}, path / "model.safetensors")
    return path


def loaded(path: Path, **options: Any) -> Any:
    return torch_foundry.patch(AutoModelForCausalLM.from_pretrained(path), **options)


def generate(model: Any, seed: int = 0, prompt: torch.Tensor | None = None, **options: Any) -> Any:
    torch.manual_seed(seed)
    prompt = ids(1, 12) if prompt is None else prompt
    return model.generate(prompt, **{"max_new_tokens": 60, "do_sample": False, **options})


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loaded(folder(tmp_path_factory.mktemp("hybrid"), "qwen3_5"))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_head_changes_no_token(family: str, tmp_path: Path) -> None:
    model = loaded(folder(tmp_path, family))
    for options in ({}, SAMPLED):
        expected = generate(model, seed=3, **options).tolist()
        assert generate(model, seed=3, **options, use_mtp=True).tolist() == expected
    seen = report(model).speculation
    assert 0 < seen.accepted < seen.drafted and seen.tokens > 1.2 * seen.steps, str(seen)
    assert not report(model).eager, str(report(model))


def test_asked_for_by_name(tmp_path: Path) -> None:
    hybrid = loaded(folder(tmp_path, "qwen3_5"))
    assert generate(hybrid, assistant_model="mtp").tolist() == generate(hybrid).tolist()
    assert report(hybrid).speculation.drafted > 0
    with pytest.raises(ValueError, match=r"assistant_model='eagle': expected a model, or \"mtp\" .*use_mtp=True"):
        generate(hybrid, assistant_model="eagle")


@pytest.mark.parametrize("family", ["qwen3_5", "glm4_moe"])
def test_a_head_that_says_what_the_model_says_is_always_right(family: str, tmp_path: Path) -> None:
    """Layers that add nothing: what comes next depends on the newest token alone."""
    path = folder(tmp_path, family, 0.0, **{"fc_weight" if family in OWN_NAMES else "eh_proj_weight": ALONE})
    model = loaded(path, kv_cache="f32")
    for options in ({}, SAMPLED):
        generate(model, **options, use_mtp=True)
    seen = report(model).speculation
    assert seen.accepted == seen.drafted > 60 and seen.tokens > 2.5 * seen.steps, str(seen)


def reference(path: Path, text: list[int], drafts: int) -> list[int]:
    """What transformers' module for MTP drafts greedily behind `text`, each draft from the state of the one before."""
    model = AutoModelForCausalLM.from_pretrained(path)
    config = model.config
    config.num_mtp_layers, config.mtp_layer_types, config.mtp_mlp_layer_types = 1, ["full_attention"], ["sparse"]
    model._keys_to_ignore_on_load_unexpected = [r"^mtp", rf"layers\.{config.num_hidden_layers}\."]
    head, cache = MtpModel.from_pretrained(model), MtpCache(config=config.get_mtp_config())
    with torch.no_grad():
        hidden = model.model(torch.tensor([text[:-1]])).last_hidden_state
        tokens, found = text[1:], list[int]()
        at = torch.arange(len(tokens))[None]
        for _ in range(drafts):
            hidden = head.forward_layer(0, hidden, at, cache, input_ids=torch.tensor([tokens]))[:, -1:]
            tokens = [int(model.lm_head(hidden)[0, 0].argmax())]
            found, at = found + tokens, at[:, -1:] + 1
    return found


@pytest.mark.skipif(MtpModel is None, reason="this transformers has no module for MTP")
@pytest.mark.parametrize("family, factor", [("qwen3_5", 0.3), ("deepseek_v3", 0.1)])
def test_drafts_are_those_of_transformers_module(
    family: str, factor: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind drafts that were accepted and that were not, with the hidden states and keys that belong to the text."""
    model, made = loaded(folder(tmp_path, family, factor, 8.0)), list[tuple[list[int], list[int]]]()
    propose = MTPDrafter.propose

    def recorded(self: Any, sequences: Any, count: int) -> None:
        propose(self, sequences, count)
        made.append((list(sequences[0].sequence.tokens), sequences[0].drafts.tolist()))

    monkeypatch.setattr(MTPDrafter, "propose", recorded)
    generate(model, max_new_tokens=24, use_mtp=True)
    seen = report(model).speculation
    assert len(made) > 4 and 0 < seen.accepted < seen.drafted, str(seen)
    for text, drafts in made:
        assert drafts == reference(tmp_path, text, len(drafts))


def test_rejected_drafts_leave_no_trace_in_recurrent_states(hybrid: Any) -> None:
    """The cache is that of the text, and can be gone on with."""
    expected = generate(hybrid, max_new_tokens=50)
    options: dict[str, Any] = {"use_mtp": True, "return_dict_in_generate": True}
    first = generate(hybrid, max_new_tokens=20, **options)
    assert first.past_key_values.get_seq_length() == first.sequences.shape[1] - 1
    for again in ({}, {"use_mtp": True}):
        cache = copy.deepcopy(first.past_key_values)
        found = generate(hybrid, prompt=first.sequences, max_new_tokens=30, past_key_values=cache, **again)
        assert found.tolist() == expected.tolist()


def test_steps_are_kept_for_the_next_text(hybrid: Any) -> None:
    for seed in range(4):  # until there were all numbers of rows
        generate(hybrid, use_mtp=True, prompt=ids(1, 12, seed=seed))
    plans = hybrid.model.decoder_plan(), hybrid.generator_plan().mtp.model.decoder_plan()
    before = [plan.captured for plan in plans]
    generate(hybrid, use_mtp=True, prompt=ids(1, 12, seed=5))
    assert [plan.captured for plan in plans] == before and all(before)


@pytest.mark.parametrize("length, tokens", [(1, 20), (2, 20), (12, 1), (12, 2), (90, 20)])
def test_short_and_long_texts(hybrid: Any, length: int, tokens: int) -> None:
    prompt = ids(1, length, seed=2)
    expected = generate(hybrid, prompt=prompt, max_new_tokens=tokens).tolist()
    assert generate(hybrid, prompt=prompt, max_new_tokens=tokens, use_mtp=True).tolist() == expected


@pytest.mark.parametrize("family", ["qwen3_5", "granite4", "nemotron_h"])
def test_prompt_lookup_for_recurrent_states(family: str) -> None:
    """Which transformers' own loop can't take back."""
    model, prompt = torch_foundry.patch(build(family)), ids(1, 9).repeat(1, 3)
    expected = generate(model, prompt=prompt).tolist()
    assert generate(model, prompt=prompt, prompt_lookup_num_tokens=5).tolist() == expected
    assert report(model).speculation.drafted, str(report(model))


# -------------------------------------------------------------------------------------------------------- what can't be


def test_what_the_loop_does_not_do_goes_on_without(hybrid: Any) -> None:
    two = ids(2, 9)
    expected = generate(hybrid, prompt=two, max_new_tokens=8).tolist()
    assert generate(hybrid, prompt=two, max_new_tokens=8, use_mtp=True).tolist() == expected
    assert report(hybrid).eager["assisted generate: several rows"] == 1


@pytest.mark.parametrize(
    "family, changes, code, named",
    [
        ("qwen3_5", {"mtp_fc_weight": torch.zeros(SIZE, SIZE)}, "SHAPE", "mtp.fc.weight"),
        ("qwen3_5", {"fc_norm_hidden_weight": None}, "TENSOR_MISSING", "norm_hidden"),
        ("qwen3_5", {"self_attn_q_proj_weight": torch.zeros(8, SIZE)}, "SHAPE", "mtp.layers.0.self_attn.q_proj"),
        ("glm4_moe", {"embed_tokens_weight": torch.zeros(VOCAB + 8, SIZE)}, "SHAPE", "embed_tokens"),
    ],
)
def test_a_head_that_does_not_fit(family: str, changes: dict[str, Any], code: str, named: str, tmp_path: Path) -> None:
    model = loaded(folder(tmp_path, family, **changes))
    with pytest.raises(LoadError, match=named) as error:
        torch_foundry.load_mtp(model)
    assert error.value.code == code
    expected = generate(model, max_new_tokens=8).tolist()
    with pytest.warns(FallbackWarning, match=named):
        assert generate(model, max_new_tokens=8, use_mtp=True).tolist() == expected
    assert generate(model, max_new_tokens=8, use_mtp=True).tolist() == expected
    assert report(model).eager[f"assisted generate: no MTP head: {code}"] == 2


def test_a_model_without_a_head_and_another_models(hybrid: Any, tmp_path: Path) -> None:
    small = torch_foundry.patch(build("llama"))
    with pytest.raises(LoadError, match="a model without one"):
        torch_foundry.load_mtp(small)
    with pytest.raises(LoadError, match="num_hidden_layers: expected the model's 3, found 2"):
        torch_foundry.load_mtp(torch_foundry.patch(build("qwen3_5", layers=3)), hybrid.config.name_or_path)
    small.save_pretrained(tmp_path)
    with pytest.raises(LoadError, match="weights of an MTP head"):
        torch_foundry.load_mtp(loaded(tmp_path))
    with pytest.raises(ValueError, match="patched language model"):
        torch_foundry.load_mtp(build("llama"))


@pytest.mark.parametrize("family", ["qwen3_5", "deepseek_v3"])
def test_packed_heads_in_packed_folders(family: str, tmp_path: Path) -> None:
    """transformers' loader leaves them in the files, and `load_mtp` finds them there."""
    plain = folder(tmp_path / "dense", family)
    torch_foundry.quantize(loaded(plain), "q8_0").save_pretrained(tmp_path / "packed")
    settings = json.loads((tmp_path / "packed" / "config.json").read_text())
    tensors = load_file(tmp_path / "packed" / "model.safetensors")
    for name, weight in load_file(plain / "model.safetensors").items():
        if "mtp." not in name and "layers.2." not in name:
            continue
        if name.endswith(("q_proj.weight", "with_mqa.weight", "fc.weight", "eh_proj.weight")):
            weight = torch_foundry.quant.quantize(weight, "q8_0")
            settings["quantization_config"]["formats"][name] = "q8_0"
        tensors[name] = weight
    save_file(tensors, tmp_path / "packed" / "model.safetensors")
    (tmp_path / "packed" / "config.json").write_text(json.dumps(settings))
    model = loaded(tmp_path / "packed")
    expected = generate(model, max_new_tokens=8).tolist()
    assert generate(model, max_new_tokens=8, use_mtp=True).tolist() == expected and not report(model).eager
    assert model.generator_plan().mtp.model.mtp.fc_hidden.format == "q8_0"


def test_another_output_layer_makes_it_load_again(tmp_path: Path) -> None:
    model = loaded(folder(tmp_path, "qwen3_5"))
    generate(model, use_mtp=True)
    first = model.generator_plan().mtp
    torch_foundry.quantize(model, {"lm_head": "q8_0"})
    expected = generate(model).tolist()
    assert generate(model, use_mtp=True).tolist() == expected
    assert model.generator_plan().mtp is not first and not report(model).eager
    torch_foundry.unpatch(model)
    assert type(model.lm_head).__name__ == "FoundryLinear" and "mtp" not in str(model.state_dict().keys())
