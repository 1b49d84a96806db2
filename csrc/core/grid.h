// Launch geometry, with presets for the usual kernels. Where threadgroups follow a choice of tuning.h or the data
// (experts, split keys), the op itself says how work is divided.
#pragma once

#include <array>
#include <cstdint>

namespace foundry {

struct Grid {
  std::array<uint32_t, 3> size{1, 1, 1};  // threadgroups, or threads when `threads` is set
  std::array<uint32_t, 3> group{1, 1, 1}; // threads per threadgroup
  bool threads = false;                   // dispatchThreads: the last threadgroup of an axis may be smaller
};

constexpr uint32_t kSimdWidth = 32;

constexpr uint32_t ceil_div(int64_t a, int64_t b) { return static_cast<uint32_t>((a + b - 1) / b); }

// One threadgroup of `threads` threads per row; a second axis for batches.
constexpr Grid per_row(int64_t rows, uint32_t threads, int64_t batch = 1) {
  return {{static_cast<uint32_t>(rows), static_cast<uint32_t>(batch), 1}, {threads, 1, 1}, false};
}

// Exactly one thread per element.
constexpr Grid per_element(int64_t n, uint32_t threads = 256) {
  return {{static_cast<uint32_t>(n), 1, 1}, {threads, 1, 1}, true};
}

// One simdgroup per row (or per group of rows), `simdgroups` of them in a threadgroup.
constexpr Grid simdgroup_per_row(int64_t rows, uint32_t simdgroups, int64_t batch = 1) {
  return {{ceil_div(rows, simdgroups), static_cast<uint32_t>(batch), 1}, {kSimdWidth * simdgroups, 1, 1}, false};
}

// Tiles of BM x BN over an m x n result: x over n, y over m, z over batches.
constexpr Grid tiles(int64_t m, int64_t n, uint32_t bm, uint32_t bn, uint32_t threads, int64_t batch = 1) {
  return {{ceil_div(n, bn), ceil_div(m, bm), static_cast<uint32_t>(batch)}, {threads, 1, 1}, false};
}

} // namespace foundry
