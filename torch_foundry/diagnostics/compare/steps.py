"""Decode steps: stock's, the fused kernels layer by layer, and the graph that replays them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from torch_foundry.core.errors import Fallback
from torch_foundry.diagnostics.compare.kernels import wrong_kernels
from torch_foundry.diagnostics.compare.result import LIMIT, REPLAY, STEP, Path, Stage, error, hidden_of, stages_of
from torch_foundry.diagnostics.compare.ties import error_alone, undecided
from torch_foundry.generation.step_state import CacheLayers, StepState
from torch_foundry.kvcache.formats import PLAIN
from torch_foundry.models.decoder import DecoderModel, decoder_plan
from torch_foundry.models.layer import forward
from torch_foundry.models.outputs import finished
from torch_foundry.models.weights import GEMV
from torch_foundry.nn.linear import MAX_GEMV_ROWS

STEPS = 3  # the first is captured, the others are replayed
KNOWN = {"attention_mask", "position_ids"}
Switch = Callable[[bool], contextlib.AbstractContextManager[None]]  # fused kernels, or stock code
Seen = list[tuple[Any, torch.Tensor]]  # of each stage: what stock code gave it, and what it made of that


def why_not(model: Any, inputs: dict[str, Any]) -> str | None:
    """Why decode steps of `model` can't be compared; None if they can."""
    try:
        plan = decoder_plan(model)
    except Fallback:
        return f"{type(model).__name__} is no known decoder, so none of its steps is fused"
    if unknown := sorted(name for name in inputs if name not in KNOWN and inputs[name] is not None):
        return f"argument {unknown[0]}"
    mask = inputs.get("attention_mask")
    if mask is not None and mask.dim() != 2:
        return "the mask is not [batch, tokens]"
    positions = inputs.get("position_ids")
    if positions is not None and positions.dim() != 2:
        return "positions are not [batch, tokens]"
    try:
        plan.check()
    except Fallback as fallback:
        return str(fallback)
    return None if plan.rotary.constant else "rope depends on the length of the text"


def compare_steps(
    model: Any, ids: torch.Tensor, inputs: dict[str, Any], names: dict[int, str], fused: Switch
) -> list[Path]:
    """The paths "decode step" and "replayed step", over STEPS tokens that the stock model chooses behind `ids`.

    names: of the stages, by id() of their modules. All run on caches with the same contents, stored as the model stores
    them, so that a packed cache costs neither side more than the other. Raises Fallback.
    """
    plan = decoder_plan(model)
    if plan.rotary.mrope and inputs.get("position_ids") is None:
        # a wrapper would count from where its last image has ended
        inputs = {**inputs, "position_ids": torch.arange(ids.shape[1], device=ids.device)[None]}
    text = _Text(
        model, ids[:MAX_GEMV_ROWS], {name: None if v is None else v[:MAX_GEMV_ROWS] for name, v in inputs.items()}
    )
    with fused(False):
        prompt = text.read()
        caches = [copy.deepcopy(prompt) for _ in range(3)]
        layers = [CacheLayers(cache, plan.owners, plan.state.kv_cache) for cache in caches]
        own = {names[id(layer)]: layer for layer in plan.parts[1][: len(plan.layers)] if id(layer) in names}
        ties = undecided(own, lambda: model(**text.arguments(0, copy.deepcopy(prompt))))
        seen, stock = _stock(model, text, caches[0], plan)
    with fused(True):
        by_kernels = _Kernels(model, plan, layers[1], text)
        path = by_kernels.path(seen, stock, names, ties)
        replayed = _graph(model, plan, text, caches[2], by_kernels.logits, stock, path.limit)
    return [path, replayed]


class _Text:
    """The prompt, the tokens behind it, and what a step is told of them."""

    def __init__(self, model: Any, ids: torch.Tensor, inputs: dict[str, Any]) -> None:
        self.model, self.ids, self.inputs = model, ids, inputs
        self.tokens: list[torch.Tensor] = []  # [B, 1] of each step
        given = inputs.get("position_ids")
        self.next = ids.shape[1] if given is None else given[:, -1:] + 1

    def read(self) -> DynamicCache:
        """Stock's cache of the prompt; the first token is chosen."""
        cache = DynamicCache(config=self.model.config)
        out = self.model(self.ids, past_key_values=cache, use_cache=True, **self.inputs)
        self.choose(out.logits)
        return cache

    def choose(self, logits: torch.Tensor) -> None:
        """The next step's token."""
        self.tokens.append(logits[:, -1:].argmax(-1))

    def positions(self, step: int) -> list[int]:
        """Of each row."""
        if isinstance(self.next, int):
            return [self.next + step] * len(self.ids)
        found: list[int] = (self.next + step).expand(len(self.ids), 1).flatten().tolist()
        return found

    def mask(self, step: int) -> torch.Tensor | None:
        """Of all tokens, with those of steps up to `step`."""
        mask = self.inputs.get("attention_mask")
        return None if mask is None else torch.cat([mask, mask.new_ones(len(mask), step + 1)], dim=1)

    def arguments(self, step: int, cache: DynamicCache) -> dict[str, Any]:
        """Of the model's forward pass."""
        given: dict[str, Any] = {"input_ids": self.tokens[step], "past_key_values": cache, "use_cache": True}
        if (mask := self.mask(step)) is not None:
            given["attention_mask"] = mask
        if not isinstance(self.next, int):
            given["position_ids"] = self.next + step
        return given


def _stock(model: Any, text: _Text, cache: DynamicCache, plan: DecoderModel) -> tuple[Seen, list[torch.Tensor]]:
    """What passed through the stages in the first step, and the logits of all steps."""
    seen: Seen = []
    embedding, layers, norm = plan.parts
    stages = [embedding, *layers[: len(plan.layers)], norm, model.lm_head]
    handles = [m.register_forward_hook(lambda _, args, out: seen.append((args[0], hidden_of(out)))) for m in stages]
    try:
        logits = [model(**text.arguments(0, cache)).logits]
    finally:
        for handle in handles:
            handle.remove()
    seen[0] = (seen[0][0], seen[1][0])  # what the first layer gets: some models scale it on the way there
    seen[-2] = (seen[-3][1], seen[-2][1])  # what the last layer gives, which may be several streams
    for step in range(1, STEPS):
        text.choose(logits[-1])
        logits.append(model(**text.arguments(step, cache)).logits)
    return seen, logits


class _Kernels:
    """The fused step, launched one kernel after the other."""

    def __init__(self, model: Any, plan: DecoderModel, layers: CacheLayers, text: _Text) -> None:
        self.model, self.plan, self.layers, self.text = model, plan, layers, text
        self.logits: list[torch.Tensor] = []

    def path(self, seen: Seen, stock: list[torch.Tensor], names: dict[int, str], ties: dict[str, torch.Tensor]) -> Path:
        """Errors of the first step's stages, and of the logits of all. ties: of layers with experts, by name."""
        embedding, listed, norm = self.plan.parts
        modules = [embedding, *listed, norm, self.model.lm_head]
        found = [names.get(id(m), type(m).__name__) for m in modules[: len(self.plan.layers) + 1] + modules[-2:]]
        place = self._place(0)
        runs = self._runs(place)
        alone = [
            error_alone(lambda run=run, x=x: run(x), right, ties.get(name))  # type: ignore[misc]
            for name, run, (x, right) in zip(found, runs, seen, strict=True)
        ]
        drifts: list[float] = []
        for step in range(STEPS):
            x: Any = self.text.tokens[step]
            for i, run in enumerate(self._runs(place if step == 0 else self._place(step))):
                x = run(x)
                if step == 0:
                    drifts.append(error(x, seen[i][1]))
            self.logits.append(finished(self.model, x))
            self.layers.count(1)
        limit = LIMIT.get(self.plan.dtype, LIMIT[torch.float32])
        if self.plan.state.kv_cache != PLAIN:  # a rounding may decide between two codes of a packed key
            limit = max(limit, LIMIT[torch.float16])
        layers = set(found[1:-2])
        worst = max(error(ours, right) for ours, right in zip(self.logits, stock, strict=True))
        path = Path(STEP, stages_of(found, drifts, alone, layers), worst, limit)
        if path.first_bad is not None:
            i = found.index(path.first_bad)
            path.kernels.extend(wrong_kernels(lambda: runs[i](seen[i][0])))
        return path

    def _place(self, step: int) -> StepState:
        """Room for a token; as `hf.decoder.step` and StepState have it."""
        text, batch = self.text, len(self.text.ids)
        self.layers.place(self.plan, batch, 1)
        starts = self.layers.starts
        positions, mask = text.positions(step), text.mask(step)
        state = StepState(
            self.plan, self.layers, text.tokens[step], positions=max(*positions, starts[0] + starts[1]) + 1,
            masked=mask is not None,
        )  # fmt: skip
        state.seek(starts, positions)
        if mask is not None:
            state.set_mask(mask)
        return state

    def _runs(self, place: StepState) -> list[Callable[[Any], torch.Tensor]]:
        """The stages."""
        tables, views = place.tables(), place.states()
        inputs: list[Any] = []

        def embed(ids: torch.Tensor) -> torch.Tensor:
            x = self.plan.embed(ids, GEMV, views)
            inputs[:] = self.plan.per_layer(ids, x, GEMV)
            return self.plan.expand(x, GEMV)

        layers = [
            lambda x, i=i, layer=plan.layer, kv=kv: forward(
                layer, x.contiguous(), kv, layer.rope(tables), GEMV, given=inputs[i]
            )
            for i, (plan, kv) in enumerate(zip(self.plan.layers, self.plan.of_layers(views), strict=True))
        ]
        return [embed, *layers, lambda x: self.plan.norm(self.plan.collapse(x, GEMV)), self.model.lm_head]


def _graph(
    model: Any,
    plan: DecoderModel,
    text: _Text,
    cache: DynamicCache,
    by_kernels: list[torch.Tensor],
    stock: list[torch.Tensor],
    limit: float,
) -> Path:
    """The model's own steps: they run on a graph, or Fallback is raised."""
    stages = []
    before = plan.steps
    for step in range(STEPS):
        logits = model(**text.arguments(step, cache)).logits
        if plan.steps != before + step + 1:
            reasons = ", ".join(plan.eager) or "unknown"
            raise Fallback(f"no graph ran: {reasons}")
        name = "captured" if step == 0 else f"replay {step}"
        stages.append(Stage(name, error(logits, stock[step]), None, error(logits, by_kernels[step]), False))
    return Path(REPLAY, stages, max(stage.drift for stage in stages), limit)
