// Reductions over a threadgroup.
#pragma once
#include "common/portable.h"

namespace foundry {

// Sum of `v` over the threadgroup, the same bits in every thread. `partial` holds one float per simdgroup; reuse it
// only after another barrier. All threads must call this.
METAL_FUNC float threadgroup_sum(float v, threadgroup float* partial, uint lane, uint simdgroup, uint simdgroups) {
  float sum = metal::simd_sum(v);
  if (simdgroups > 1) {
    if (lane == 0) partial[simdgroup] = sum;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    sum = 0.0f;
    for (uint i = 0; i < simdgroups; ++i) sum += partial[i];
  }
  return sum;
}

} // namespace foundry
