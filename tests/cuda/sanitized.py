"""What run_gpu.sh runs under compute-sanitizer: `python tests/cuda/sanitized.py ops [CASES]`, or one seeded fault.

The kernel tests' inputs go through every op with exact allocations (PYTORCH_NO_CUDA_MEMORY_CACHING=1); each fault must
be found by its tool.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import torch
from torch.utils._pytree import tree_map_only

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "ops")]
import torch_foundry  # noqa: E402

FAULTS = """
#include <metal_stdlib>
using namespace metal;
kernel void outside(device float* y [[buffer(0)]], constant uint& n [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  y[i + (i + 1 == n)] = 1.0f;
}
kernel void race(device float* y [[buffer(0)]], uint i [[thread_position_in_threadgroup]]) {
  threadgroup float shared[64];
  shared[i] = float(i);
  y[i] = shared[63 - i];
}
kernel void unwritten(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                      uint i [[thread_position_in_grid]]) {
  y[i] = x[i] + 1.0f;
}
"""


def ops(limit: int) -> None:
    modules = [importlib.import_module(path.stem) for path in sorted((ROOT / "tests" / "ops").glob("test_*.py"))]
    count = 0
    for module in modules:
        cases = getattr(module, "CASES", ())
        if not hasattr(module, "run"):
            continue
        step = max(1, len(cases) // limit)
        for case, dtype in cases[::step]:
            given = module.inputs(case, dtype)
            module.run(**tree_map_only(torch.Tensor, torch.Tensor.cuda, given))
            count += 1
    torch.cuda.synchronize()
    print(f"{count} cases")


def fault(name: str) -> None:
    kernel = getattr(torch_foundry.compile_shader(FAULTS), name)
    y = torch.zeros(64, device="cuda")
    if name == "outside":
        kernel(y, 64, threads=64, group_size=64)
    elif name == "unwritten":
        kernel(torch.empty(64, device="cuda"), y, threads=64, group_size=64)
    else:
        kernel(y, threadgroups=1, group_size=64)
    torch.cuda.synchronize()


if __name__ == "__main__":
    if sys.argv[1] == "ops":
        ops(int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
    else:
        fault(sys.argv[1])
