"""Where the time of a token goes: by scope and kernel, between kernels, on the host.

print(torch_foundry.profile(model, context=512))
"""

from torch_foundry.diagnostics.profiling.measure import profile
from torch_foundry.diagnostics.profiling.result import KernelTime, Profile

__all__ = ["KernelTime", "Profile", "profile"]
