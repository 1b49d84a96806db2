// How rms_norm takes a row: what other ops need to know that sum its squares in the same order.
#pragma once

#include <algorithm>

#include "ops/layout.h"
#include "norm/rms_norm.h"

namespace foundry {

inline uint32_t rms_norm_threads(int64_t hidden) {
  const uint32_t per_thread = hidden < rms_norm_long ? rms_norm_per_thread : rms_norm_per_thread_long;
  return simd_width * std::min(ceil_div(hidden, per_thread * simd_width), rms_norm_max_threads / simd_width);
}

// Elements that a thread takes at a time.
inline int rms_norm_vector(const at::Tensor& x, const at::Tensor& weight) {
  return x.size(-1) % 8 == 0 && aligned_rows(x) && aligned_rows(weight) ? 8 : 1;
}

} // namespace foundry
