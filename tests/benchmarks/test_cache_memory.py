"""Memory of a token: what bench_cache counts is what caches have, and what RESULTS.md says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import torch_foundry
from benchmarks import bench_cache
from benchmarks.bench_cache import KINDS, Kind, allocated
from tests.hf.tiny_cases import COMMON
from tests.hf.tiny_models import config, ids, random_model
from torch_foundry.engine.memory import block_bytes
from torch_foundry.kvcache.base import KVSpec
from torch_foundry.kvcache.paged import PagedCache

BENCHMARKS = Path(bench_cache.__file__).parent


def test_results_are_what_the_command_prints(capsys: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    monkeypatch.setattr("sys.argv", ["bench_cache", "--picture", str(picture)])
    bench_cache.main()
    assert capsys.readouterr().out in (BENCHMARKS / "RESULTS.md").read_text()
    assert picture.read_text() == (BENCHMARKS / "cache_memory.svg").read_text()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("tokens", [4096, 4097])
def test_bytes(kind: Kind, tokens: int) -> None:
    """By the formats alone: whole steps of 128 tokens or blocks of 16; of a window of 512 1024 tokens."""
    step = bench_cache.BLOCK if kind.paged else 128
    room = -(-tokens // step) * step
    for settings in bench_cache.MODELS.values():
        spec = KVSpec(settings.num_key_value_heads, settings.head_dim)
        each = block_bytes([spec], 1, kind.kv_cache, kind.dtype)
        layers = settings.num_hidden_layers
        windows = 0 if kind.paged else getattr(settings, "layer_types", []).count("sliding_attention")
        assert allocated(settings, kind, tokens) == each * (room * (layers - windows) + 1024 * windows)


@pytest.mark.tier("models", quick=2)
@pytest.mark.parametrize("name", ["LlamaConfig", "MistralConfig"])
@pytest.mark.parametrize(
    "kind", [Kind("f32", kv_cache="f32"), Kind("q8_0", kv_cache="q8_0"), Kind("pages", paged=True)]
)
def test_a_generation_has_no_more(name: str, kind: Kind) -> None:
    """The cache that generate() returns, in a model's own dtype."""
    settings = config(name, sliding_window=40) if name == "MistralConfig" else config(name)
    model = torch_foundry.patch(random_model(settings), kv_cache=kind.kv_cache)
    model.generation_config.eos_token_id = None
    cache = PagedCache(settings, -(-511 // 16)) if kind.paged else None
    options: dict[str, Any] = {} if cache is None else {"past_key_values": cache}
    out = model.generate(ids(1, 500), max_new_tokens=12, do_sample=False, return_dict_in_generate=True, **options)
    layers: list[Any] = out.past_key_values.layers
    assert len(layers) == COMMON["num_hidden_layers"] and layers[0].get_seq_length() == 511
    memory = [m for layer in layers for m in ([p.data for p in layer.pools] if kind.paged else layer.memory)]
    expected = Kind("", model.dtype, kind.kv_cache, kind.paged)
    assert sum(m.nbytes for m in memory) == allocated(settings, expected, 511)
