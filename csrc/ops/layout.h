// How tensors lie in memory, as kernels want to know it.
#pragma once

#include <ATen/MemoryOverlap.h>
#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include "core/grid.h"
#include "common/rows.h"

namespace foundry {

// The rows of x[..., n] as at most three levels of strides. Views that need more are refused: a copy would be silent.
inline Rows rows_of(const char* name, const at::Tensor& x) {
  int64_t sizes[3] = {1, 1, 1}, strides[3] = {0, 0, 0};
  int level = 3;
  for (int64_t d = x.dim() - 2; d >= 0; d--) {
    if (x.size(d) == 1) continue;
    if (level < 3 && x.stride(d) == sizes[level] * strides[level]) {
      sizes[level] *= x.size(d);
      continue;
    }
    TORCH_CHECK(level > 0, name, ": expected rows in at most three levels of strides, got shape ", x.sizes(),
                " with strides ", x.strides());
    level--;
    sizes[level] = x.size(d);
    strides[level] = x.stride(d);
  }
  Rows rows{};
  rows.size1 = u32(sizes[1]);
  rows.size2 = u32(sizes[2]);
  rows.stride0 = u32(strides[0]);
  rows.stride1 = u32(strides[1]);
  rows.stride2 = u32(strides[2]);
  return rows;
}

inline int64_t row_count(const at::Tensor& x) { return x.size(-1) ? x.numel() / x.size(-1) : 0; }

// Whether every row begins at a multiple of 16 bytes.
inline bool aligned_rows(const at::Tensor& x) {
  if (reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16) return false;
  for (int64_t d = 0; d + 1 < x.dim(); d++) {
    if (x.size(d) > 1 && x.stride(d) * x.itemsize() % 16) return false;
  }
  return true;
}

// Stride of a dimension that may be broadcast.
inline uint32_t stride_of(const at::Tensor& x, int64_t dim) { return x.size(dim) == 1 ? 0 : u32(x.stride(dim)); }

inline void check_same_shape(const char* name, const at::Tensor& x, const char* other_name, const at::Tensor& other) {
  TORCH_CHECK(x.sizes() == other.sizes(), name, ": expected the shape of ", other_name, ", ", other.sizes(), ", got ",
              x.sizes());
}

// For memory that a kernel writes: two indices never name one element.
inline void check_writable(const char* name, const at::Tensor& x) {
  TORCH_CHECK(at::has_internal_overlap(x) != at::MemOverlap::Yes, name, ": expected memory without overlap, got shape ",
              x.sizes(), " with strides ", x.strides());
}

} // namespace foundry
