// Launch geometry: the presets from which ops take their grids.
#pragma once

#include <array>
#include <cstdint>

#include "common/portable.h"

namespace foundry {

struct Grid {
  std::array<uint32_t, 3> size{1, 1, 1};  // threadgroups, or threads when `threads` is set
  std::array<uint32_t, 3> group{1, 1, 1}; // threads per threadgroup
  bool threads = false;                   // dispatchThreads: the last threadgroup of an axis may be smaller
};

constexpr size_t kThreadgroupBytes = 32768; // of memory, that all executors have

// Sizes and strides as kernels take them: 32 bits, which checks have made sure of.
constexpr uint32_t u32(int64_t value) { return static_cast<uint32_t>(value); }

constexpr uint32_t ceil_div(int64_t a, int64_t b) { return u32((a + b - 1) / b); }

// One threadgroup of `threads` threads per row; more axes for batches, and for parts of the work on a row.
constexpr Grid per_row(int64_t rows, uint32_t threads, int64_t batch = 1, int64_t parts = 1) {
  return {{u32(rows), u32(batch), u32(parts)}, {threads, 1, 1}, false};
}

// Exactly one thread per element; a second axis for batches.
constexpr Grid per_element(int64_t n, uint32_t threads = 256, int64_t batch = 1) {
  return {{u32(n), u32(batch), 1}, {threads, 1, 1}, true};
}

// One simdgroup per row (or per group of rows), `simdgroups` of them in a threadgroup.
constexpr Grid simdgroup_per_row(int64_t rows, uint32_t simdgroups, int64_t batch = 1) {
  return {{ceil_div(rows, simdgroups), u32(batch), 1}, {simd_width * simdgroups, 1, 1}, false};
}

// `each` units for every team of `team` simdgroups, `simdgroups` in a threadgroup; a second axis for batches.
constexpr Grid teams(int64_t units, uint32_t each, uint32_t team, uint32_t simdgroups, int64_t batch = 1) {
  return per_row(ceil_div(units, each * (simdgroups / team)), simd_width * simdgroups, batch);
}

// Tiles of BM x BN over an m x n result: x over n, y over m, z over batches.
constexpr Grid tiles(int64_t m, int64_t n, uint32_t bm, uint32_t bn, uint32_t threads, int64_t batch = 1) {
  return {{ceil_div(n, bn), ceil_div(m, bm), u32(batch)}, {threads, 1, 1}, false};
}

} // namespace foundry
