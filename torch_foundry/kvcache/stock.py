"""Classes of transformers' caches that the oldest version we run with doesn't have."""

from __future__ import annotations

from transformers import cache_utils

# Of a layer that keeps nothing. Where there is no such class, no layer is one.
DummyLayer: type = getattr(cache_utils, "DummyLayer", type("DummyLayer", (), {}))
