// How a simdgroup writes a row of a KV cache (kv_store.h) from `columns` floats in threadgroup memory.
#pragma once
#include "attention/kv_store.h"

namespace foundry {

// As an element of a dense row. What is finite stays so: numbers that are too large for a half are cut, as those of
// packed rows are.
template <typename E> METAL_FUNC E narrowed(float x) { return E(x); }
template <> METAL_FUNC half narrowed<half>(float x) {
  return half(metal::isfinite(x) ? metal::clamp(x, -65504.0f, 65504.0f) : x);
}

template <typename E> struct DenseOut {
  using unit = E;
  static METAL_FUNC void store(device E* row, threadgroup const float* x, uint columns, uint lane) {
    for (uint i = lane; i < columns; i += simd_width) row[i] = narrowed<E>(x[i]);
  }
};

// A lane has a column of each block. The scale is that which is stored, so a code is off by half a step at most. A
// block with NaN or infinity is NaN, and what is larger than f16's largest scale can say is cut.
template <int Bits, bool Symmetric> struct PackedOut {
  using unit = uchar;
  FOUNDRY_CONST int zero = 1 << (Bits - 1);
  static METAL_FUNC float scale_of(float x) {
    const float low = metal::simd_min(x), high = metal::simd_max(x);
    const float extreme = high >= -low ? high : low;
    const float scale = Symmetric ? metal::abs(extreme) / float(zero - 1) : extreme / float(-zero);
    return float(half(metal::min(metal::max(scale, -65504.0f), 65504.0f)));
  }
  static METAL_FUNC void store(device uchar* row, threadgroup const float* x, uint columns, uint lane) {
    constexpr float least = Symmetric ? 1.0f : 0.0f, most = float(2 * zero - 1);
    device half* scales = (device half*)(row + columns * Bits / 8);
    const uint blocks = (columns + kv_block - 1) / kv_block;
    for (uint b = 0; b < blocks; ++b) {
      const uint i = b * kv_block + lane;
      const float value = i < columns ? x[i] : 0.0f;
      const bool finite = metal::simd_max(metal::isfinite(value) ? 0.0f : 1.0f) == 0.0f;
      const float scale = scale_of(finite ? value : 0.0f);
      const float scaled = finite && scale != 0.0f ? value * (1.0f / scale) : 0.0f;
      const uint code = uint(metal::min(metal::max(metal::floor(scaled + (zero + 0.5f)), least), most));
      const uint next = metal::simd_shuffle_xor(code, 1);
      if (i < columns) KvCodes<Bits>::write(row, i, code, next);
      if (lane == 0) scales[b] = half(finite ? scale : NAN);
    }
    if (lane == 0 && (columns * Bits / 8 + 2 * blocks) % 4) scales[blocks] = half(0.0f);
  }
};

#define FOUNDRY_KV_WRITER(policy, name, bits, symmetric) using policy##Out = PackedOut<bits, symmetric>;
FOUNDRY_KV_FORMATS(FOUNDRY_KV_WRITER)

} // namespace foundry
