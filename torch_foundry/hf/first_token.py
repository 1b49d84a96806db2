"""The kernels of a model's first token, compiled side by side when it is patched."""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections import OrderedDict
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.cache_utils import DynamicCache

from torch_foundry.core import devices, environment, runtime
from torch_foundry.core.ahead import KernelList
from torch_foundry.core.errors import Fallback
from torch_foundry.generation.runner import DecodeRunner
from torch_foundry.models.decoder import decoder_plan
from torch_foundry.models.state import ModelState, Plan
from torch_foundry.sampling import Sampler, Settings

PROMPTS = (12, 2000)  # tokens: few, for packed weights and attention in one part, and many
SHORT = 5
SETTINGS = (Settings(), Settings(do_sample=True, top_k=50, top_p=0.9))  # both ways of choosing that are common


def compile_first_token(model: nn.Module, state: ModelState) -> None:
    """Compile what a patched language model launches for a prompt and one step after it, where that is worth it: the
    device's compiler is the system's, and nothing was compiled when the package was built. Never raises, and keeps no
    memory: what could not be compiled, or found out, is compiled when it is needed. `state.ahead` has the outcome.
    """
    device = next((p.device for p in model.parameters()), None)
    if device is None or not hasattr(model, "generator_plan"):
        return
    if not wanted(device):
        _ask(model, device)
        return
    kernels, problems = record_first_token(model, device)
    try:
        kernels.compile()
    except Exception as error:
        problems.append(error)
    others = "".join(f"; {type(problem).__name__}: {problem}" for problem in problems)
    state.ahead = f"{len(kernels)} kernels{others}"


def record_first_token(model: nn.Module, device: torch.device) -> tuple[KernelList, list[Exception]]:
    """What a patched language model launches on `device` for a prompt and one step after it, and what stopped that from
    being found out."""
    kernels = KernelList(device)
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # of stock code that runs in a layer's place: the model itself will say so
            twin = on_meta(model)
            with kernels.record():
                return kernels, first_token(twin)
    except Exception as error:
        return kernels, [error]


def _ask(model: nn.Module, device: torch.device) -> None:
    """What choosing a kernel asks of the device, which waits for it: a captured step should not have to."""
    apples = devices.of(device).compiles_ahead and runtime.has_executor(device.type)
    if apples and any(tensor.dtype == torch.uint8 for tensor in model.state_dict().values()):
        runtime.subnormal_codes(device)
    if apples:
        runtime.tensor_operations(device)


def wanted(device: torch.device) -> bool:
    """Whether kernels for `device` are compiled when a model is patched."""
    given = environment.COMPILE_AHEAD.value()
    asked = devices.of(device).compiles_ahead if not given else given == "1"
    return asked and runtime.has_executor(device.type)


def on_meta(model: nn.Module) -> Any:
    """A model of the same modules whose tensors have no data, and no hooks. Everything else is shared with `model`.

    ValueError: a tensor of a class of its own (tensor parallelism), or a module with a `forward` of its own.
    """
    tensors: dict[int, torch.Tensor] = {}
    modules: dict[int, nn.Module] = {}

    def empty(tensor: torch.Tensor | None) -> torch.Tensor | None:
        if tensor is None or id(tensor) in tensors:
            return None if tensor is None else tensors[id(tensor)]
        if type(tensor) not in (torch.Tensor, nn.Parameter):
            raise ValueError(f"a {type(tensor).__name__} among the weights")
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        tensors[id(tensor)] = nn.Parameter(made, False) if isinstance(tensor, nn.Parameter) else made
        return tensors[id(tensor)]

    def twin(module: nn.Module) -> nn.Module:
        if id(module) in modules:
            return modules[id(module)]
        if "forward" in module.__dict__:
            raise ValueError(f"{type(module).__name__} has a forward of its own")
        made = modules[id(module)] = module.__class__.__new__(module.__class__)
        own = {k: empty(v) if isinstance(v, torch.Tensor) else v for k, v in module.__dict__.items()}
        own |= {name: OrderedDict() for name in own if name.endswith("_hooks") and isinstance(own[name], dict)}
        own["_parameters"] = {name: empty(p) for name, p in module._parameters.items()}
        own["_buffers"] = {name: empty(b) for name, b in module._buffers.items()}
        made.__dict__.update(own)
        made.__dict__["_modules"] = {n: None if m is None else twin(m) for n, m in module._modules.items()}
        if isinstance(module, PreTrainedModel):  # GPT-2's looks for padding among ids, to warn of it
            made.__dict__["warn_if_padding_and_no_attention_mask"] = lambda *given: None
        if isinstance(plan := own.get("_foundry"), Plan):
            made.__dict__["_foundry"] = Plan(state.setdefault(id(plan.state), copy.deepcopy(plan.state)))
        return made

    state: dict[int, ModelState] = {}
    return twin(model)


def first_token(model: Any) -> list[Exception]:
    """Prompts, and a step after each, of a patched model on the meta device. Returns what stopped some of them: code of
    any model, that needs data or doesn't know the device.
    """
    problems = []
    for tokens in PROMPTS:
        try:
            _prompt_and_step(model, min(tokens, _longest(model)))
        except Exception as error:
            problems.append(error)
    if len(problems) == len(PROMPTS):  # kernels may do all of a step, where they leave a prompt to stock code
        with contextlib.suppress(Exception):
            _prompt_and_step(model, SHORT)
    return problems


def _longest(model: Any) -> int:
    """Tokens of a prompt that leaves room for one behind it."""
    most = None
    with contextlib.suppress(Fallback):
        most = decoder_plan(model).most_positions
    return PROMPTS[-1] if most is None else most - 1


def _prompt_and_step(model: Any, tokens: int) -> None:
    ids, positions = torch.zeros(1, tokens, dtype=torch.int64, device="meta"), torch.arange(tokens)[None]
    cache = DynamicCache(config=model.config.get_text_config())
    logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits[:, -1]
    runner = DecodeRunner(model, model.generator_plan(), cache, 1, {"position_ids": positions})
    for settings in SETTINGS:
        sampler = Sampler(settings, ids, vocab_size=logits.shape[-1], capacity=tokens + 1, seed=0)
        sampler.step(logits)
    runner.begin(sampler, ids)
    runner.step(1, 1)
