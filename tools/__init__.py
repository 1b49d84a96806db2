"""Programs for those who work on torch_foundry; not part of the package."""
