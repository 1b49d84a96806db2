"""A conversation that keeps its KV cache from turn to turn."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicCache, LinearAttentionLayer

from torch_foundry.core.errors import Fallback
from torch_foundry.core.interrupts import uninterruptible
from torch_foundry.engine.images import FEATURES, Images
from torch_foundry.io import LoadError, open_safetensors
from torch_foundry.io.files import replacing
from torch_foundry.io.safetensors import write_tensors
from torch_foundry.io.session_cache import described, restore, tensors_of
from torch_foundry.io.session_file import FORMAT, about, fingerprint, texts
from torch_foundry.kvcache.snapshots import MOST, Snapshots, stored, take_back
from torch_foundry.kvcache.state_tables import EVERY
from torch_foundry.models.decoder import decoder_plan


class Session:
    """Turns of one conversation with `model`; what two turns have in common is read once.

    model: a patched (or stock) causal language model. tokenizer: for `send`. system: text of a system message. options:
    of `model.generate`, for every turn. template: options of `apply_chat_template`, for every turn (`tools` ...).

    Before each turn the new prompt is compared with the tokens that are in the cache: their longest common prefix
    stays, the rest is cropped, and only what is new is read. So a template that leaves something out of earlier turns,
    or messages that were edited, cost time and nothing else. Recurrent states and sliding windows go back to the newest
    snapshot before: there is one in each `snapshot_every` tokens and at the end of each turn, `snapshots` at most.
    `snapshot_format="q8_0"` keeps recurrent states there in about a quarter of the memory, with an error that text
    after an edit has (decision 44); by default they are exact.

    messages: of the chat, as `apply_chat_template` takes them; may be edited between turns. tokens: in the cache, or
    chosen last. reused: how many tokens of the newest prompt were not read again.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        system: str | None = None,
        template: dict[str, Any] | None = None,
        snapshot_every: int = EVERY,
        snapshots: int = MOST,
        snapshot_format: str | None = None,
        **options: Any,
    ) -> None:
        for name, value in (("snapshot_every", snapshot_every), ("snapshots", snapshots)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name}: expected a whole number from 1 on, got {value!r}")
        self._snapshots = snapshot_every, snapshots, snapshot_format
        self.model, self.tokenizer, self.options, self.template = model, tokenizer, options, template or {}
        self.messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self.reused = 0
        self.reset()

    def reset(self) -> None:
        """Forget what was read; `messages` stay."""
        self.cache: Any = DynamicCache(config=self.model.config)
        vars(self.cache)["snapshots"] = Snapshots(*self._snapshots)
        vars(self.cache)["shown"] = ""  # a digest of the images that it has read
        self.tokens: list[int] = []
        self._mask: list[int] = []

    def send(self, content: str, *, role: str = "user", **options: Any) -> str:
        """Append a message, let the model answer, append the answer and return it. options: of this turn's generate().

        An answer ends where the model ends it, at the length that somebody gave, or where the context ends. After an
        exception the messages are as before. ValueError: the conversation fills the model's context.
        """
        if self.tokenizer is None or not self.tokenizer.chat_template:
            raise ValueError("tokenizer: expected one with a chat template; without one, use Session.generate")
        messages = [*self.messages, {"role": role, "content": content}]
        inputs = self.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True, **self.template
        )
        prompt = inputs["input_ids"].to(self.model.device)
        ids = self.generate(prompt, **{**options, **self.limits(prompt.shape[1], options)})
        answer: str = self.tokenizer.decode(ids[0, prompt.shape[1] :], skip_special_tokens=True)
        self.messages = [*messages, {"role": "assistant", "content": answer}]
        return answer

    def limits(self, prompt: int, options: dict[str, Any]) -> dict[str, int]:
        """Name generate()'s limit of a text that begins with `prompt` tokens.

        It is the one that somebody gave, and at most the model's context, for which caches are made. Where nobody gave
        one, all of it: generate() would stop after 20 tokens. ValueError: the prompt alone fills the context.
        """
        new, whole = (self._setting(name, options) for name in ("max_new_tokens", "max_length"))
        context = getattr(self.model.config.get_text_config(), "max_position_embeddings", None)
        if context is None:
            return {}
        if prompt >= context:
            raise ValueError(f"the conversation has {prompt} tokens, and the model's context {context}")
        if new:
            return {"max_new_tokens": min(new, context - prompt)}
        return {"max_length": min(whole or context, context)}

    def _setting(self, name: str, options: dict[str, Any]) -> Any:
        """What generate() takes for `name`."""
        settings = self.options | options
        return settings.get(name) or getattr(settings.get("generation_config") or self.model.generation_config, name)

    def generate(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        *,
        shown: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Generate, as `model.generate(input_ids, attention_mask=...)`, reading only what the cache doesn't hold.

        input_ids: int64 [1, n], the whole text so far. attention_mask: [1, n], zeros where it is padded on the left.
        shown: of a text with images, what the model's processor returns beside these two, for all images of the text.
        The cache is gone on with if it has read all of the same images; with others, everything is read again.

        Returns int64 [1, n + new tokens]. After an interrupt the next turn reads everything again. ValueError: images
        for a model that is not patched, is shown none, or can't be shown these; or padding beside images.
        """
        if input_ids.dim() != 2 or input_ids.shape[0] != 1 or not input_ids.shape[1]:
            raise ValueError(f"input_ids: expected [1, n] with n > 0, got {list(input_ids.shape)}")
        text = input_ids[0].tolist()
        mask = [1] * len(text) if attention_mask is None else attention_mask[0].tolist()
        if len(mask) != len(text):
            raise ValueError(f"attention_mask: expected [1, {len(text)}], got [1, {len(mask)}]")
        images = self._images(shown or {}, text, mask)
        settings = {"tokenizer": self.tokenizer, **self.options, **options}
        settings |= {"return_dict_in_generate": False, "use_cache": True}
        more_rows = max(self._setting(name, options) or 1 for name in ("num_beams", "num_return_sequences")) > 1
        if more_rows and images is not None:
            raise ValueError("shown: expected one answer to a text with images, neither beams nor several")
        if more_rows:
            self.reset()  # generate() does not repeat the rows of a cache that it is given
        given = None if attention_mask is None else attention_mask.to(self.model.device)
        if given is None:  # without one, generate() guesses from padding tokens
            given = torch.ones_like(input_ids)
        with uninterruptible():
            digest, end = ("", 0) if images is None else (images.digest.hex(), images.end)
            self._go_back(text, mask)
            if digest != self.cache.shown or len(self.tokens) < end:
                self.reset()
            if any(self.cache.is_sliding):
                self.cache.activate_past_recording()
                if self.tokens:
                    self._crop(0, len(self.tokens))  # windows let go of what they kept for the turn before
            reused, cache = len(self.tokens), self.cache
            if images is not None:
                settings |= self._about(images, shown or {}, len(text), read=bool(reused))
            else:
                wrapper: Any = getattr(self.model, "model", None)
                if hasattr(wrapper, "rope_deltas"):
                    wrapper.rope_deltas = None  # by which stock code moves any text, though it is the last images'
            self.reset()  # the turn has the cache: if Ctrl-C ends it, the session has an empty one
            self.reused = reused
        try:
            if all(mask) and not more_rows and (images is None or reused):
                self._read(cache, input_ids, reused, settings.get("position_ids"))
            ids: torch.Tensor = self.model.generate(input_ids, attention_mask=given, past_key_values=cache, **settings)
        except Exception:
            self._keep(cache, text, mask, digest)
            raise
        new = ids.shape[1] - len(text)
        self._keep(cache, ids[0].tolist(), [*mask, *[1] * new], digest)
        return ids

    def _images(self, shown: Mapping[str, Any], text: list[int], mask: list[int]) -> Images | None:
        """Those of a text, checked; None: it has none."""
        if not any(shown.get(name) is not None for name in FEATURES):
            return None
        if not all(mask):
            raise ValueError("attention_mask: expected a text without padding, as it is shown images")
        try:
            return Images.of(shown, text, self.model, decoder_plan(self.model))
        except Fallback as fallback:
            raise ValueError(f"shown: expected a patched model of a known family, and {fallback}") from None
        except AttributeError:
            raise ValueError("shown: expected a patched model") from None

    def _about(self, images: Images, shown: Mapping[str, Any], length: int, read: bool) -> dict[str, Any]:
        """What generate() is told of a text of `length` tokens with images; read: the cache has them."""
        first = images.inputs["position_ids"]
        rest = torch.arange(images.end, length, device=first.device) + images.shift
        positions = torch.cat([first, rest.expand(*first.shape[:-1], -1)], dim=-1)
        names = images.inputs.keys() - {"input_ids", "position_ids"}
        told = {} if read else {name: shown[name] for name in names}
        return {"position_ids": positions} | {
            name: value.to(self.model.device) if isinstance(value, torch.Tensor) else value
            for name, value in told.items()
        }

    @torch.no_grad()
    def _read(self, cache: Any, ids: torch.Tensor, start: int, positions: torch.Tensor | None) -> None:
        """Read all but the last token, in parts that end with a snapshot, if `cache` has layers that need it.
        positions: as the model takes them; None: the usual ones."""
        end, every = ids.shape[1] - 1, self._snapshots[0]
        if not any(cache.is_sliding) and not any(isinstance(each, LinearAttentionLayer) for each in cache.layers):
            return
        if start and not cache.snapshots.take(cache, start):
            return
        for border in (*range((start // every + 1) * every, end, every), end):
            if border > start:
                told: dict[str, Any] = {"past_key_values": cache, "use_cache": True, "logits_to_keep": 1}
                if positions is not None:
                    told["position_ids"] = positions[..., start:border]
                self.model(input_ids=ids[:, start:border], **told)
                if not cache.snapshots.take(cache, border):
                    return
                start = border

    @uninterruptible()
    def _keep(self, cache: Any, tokens: list[int], mask: list[int], shown: str) -> None:
        """Take the cache of a turn back, as far as it holds `tokens`. Beams leave nothing of use."""
        vars(cache)["shown"] = shown
        self.cache, self.tokens, self._mask = cache, tokens, mask
        surplus = cache.get_seq_length() - len(tokens)
        if surplus > 0:  # the turn failed: these were generated, but nobody knows which they are
            self._crop(surplus, len(tokens))
        self._trim()

    def _trim(self) -> None:
        """Keep `tokens` to those that the cache has read: the newest one it has not."""
        if any(stored(layer)[0] > 1 for layer in self.cache.layers if getattr(layer, "is_initialized", False)):
            return self.reset()
        length = self.cache.get_seq_length()
        self.tokens, self._mask = self.tokens[:length], self._mask[:length]

    def _go_back(self, text: Sequence[int], mask: Sequence[int]) -> None:
        """Let the cache hold a prefix of `text`, and less than all of it: the last token has to be read."""
        pairs = zip(zip(self.tokens, self._mask, strict=True), zip(text, mask, strict=True), strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(self.tokens), len(text)))
        keep = min(same, len(text) - 1)
        if len(self.tokens) > keep:
            self._crop(len(self.tokens) - keep, keep)
            self._trim()

    def _crop(self, surplus: int, keep: int) -> None:
        """Drop the newest `surplus` tokens, so that `keep` are left, or those before a snapshot, if need be all."""
        if not take_back(self.cache, surplus, keep):
            self.reset()

    # --------------------------------------------------------------------------------------------------- save, restore

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write messages, tokens, the cache and its snapshots to a safetensors file.

        It takes the place of what is there once it is whole. Of recurrent layers it has the newest state and those of
        snapshots, so what is restored goes back to one of them, never by single tokens.

        TypeError: a model with recurrent layers that is not patched.
        """
        text = {"tokens": self.tokens, "mask": self._mask}
        tensors = {name: torch.tensor(each, dtype=torch.int64) for name, each in text.items()} | tensors_of(self.cache)
        told = {"messages": self.messages, "model": fingerprint(self.model), "shown": self.cache.shown}
        told |= described(self.cache)
        with replacing(path) as file:
            write_tensors(file, tensors, {"format": FORMAT, "session": json.dumps(told)})

    @classmethod
    def restore(cls, path: str | os.PathLike[str], model: Any, tokenizer: Any = None, **options: Any) -> Session:
        """The session that `save` wrote, with the model that it was saved with; options as of the class.

        What follows has the bits that it would have had without.

        LoadError if the file is no session, is damaged, or is one of another model, of another `kv_cache`, or with
        snapshots of another format.
        DoesNotFit: the device has no room for it.
        """
        session = cls(model, tokenizer, **options)
        with open_safetensors(path) as file:
            said = about(file.path, file.metadata)
            if said["model"] != fingerprint(model):
                raise LoadError("SESSION", path, "model", expected="the model that it was saved with", found="another")
            restore(file, said, session.cache, model)
            if any(session.cache.is_sliding):  # as behind each turn: windows can be cropped, and go back to snapshots
                session.cache.activate_past_recording()
            session.tokens, session._mask = (texts(file, name, said["seen"]) for name in ("tokens", "mask"))
        session.messages, vars(session.cache)["shown"] = said["messages"], said.get("shown", "")
        return session
