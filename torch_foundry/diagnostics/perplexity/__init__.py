"""How much a model loses by its weights' format: perplexity, and its distance from a reference model token by token."""

from torch_foundry.diagnostics.perplexity.measure import perplexity
from torch_foundry.diagnostics.perplexity.result import Divergence, Quality

__all__ = ["Divergence", "Quality", "perplexity"]
