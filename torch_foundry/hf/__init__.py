"""transformers' front door: `torch_foundry.patch(model)` and what stands behind it."""
