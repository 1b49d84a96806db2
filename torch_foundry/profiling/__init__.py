"""Where the time of a token goes: by scope and kernel, between kernels, on the host.

print(torch_foundry.profile(model, context=512))
"""

from torch_foundry.profiling.measure import profile
from torch_foundry.profiling.result import Line, Profile

__all__ = ["Line", "Profile", "profile"]
