// Host and GPU share this: prompts of recurrent mixers, a chunk of tokens at a time, by matrix products. A sequence's
// tokens lie in rows of floats; each sequence has whole chunks of them.
#pragma once
#include "common/portable.h"

namespace foundry {

FOUNDRY_CONST uint32_t recurrent_chunk = 32; // tokens that go together: one for each lane

#ifdef __METAL_VERSION__
constant constexpr int chunk = int(recurrent_chunk), tiles = chunk / 8;
using Matrix = metal::simdgroup_matrix<float, 8, 8>;

// Rows that a sequence of so many tokens has.
METAL_FUNC uint rows_of(uint tokens) { return (tokens + recurrent_chunk - 1) / recurrent_chunk * recurrent_chunk; }

// The first row of a sequence.
METAL_FUNC uint first_row(device const int* runs, uint stride, uint sequence) {
  uint row = 0;
  for (uint i = 0; i < sequence; ++i) row += rows_of(uint(runs[i * stride + 1]));
  return row;
}

// Products of decays are sums of their logarithms from token to token; a difference of sums would lose digits. This is
// the sum behind token `from` and before token `to`.
METAL_FUNC float logs_between(threadgroup const float* logs, uint from, uint to) {
  float log = 0.0f;
  for (uint t = from + 1; t < to; ++t) log += logs[t];
  return log;
}

// The sum of those behind a lane's token.
METAL_FUNC float logs_behind(float log, uint lane) {
  const ushort turned = ushort(31 - lane);
  return metal::simd_shuffle(metal::simd_prefix_exclusive_sum(metal::simd_shuffle(log, turned)), turned);
}
#endif

} // namespace foundry
