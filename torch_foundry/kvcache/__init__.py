"""KV caches: preallocated, growing layers that take the place of transformers' own inside a `DynamicCache`."""
