// How a simdgroup writes a row of a KV cache (kv_store.h) from `columns` floats in threadgroup memory.
#pragma once
#include "kv_store.h"

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
template <int Bits> struct PackedOut {
  using unit = uchar;
  static METAL_FUNC float scale_of(float x) {
    const float low = metal::simd_min(x), high = metal::simd_max(x);
    const float extreme = high >= -low ? high : low;
    const float scale = Bits == 8 ? metal::abs(extreme) / 127.0f : extreme / -8.0f;
    return float(half(metal::min(metal::max(scale, -65504.0f), 65504.0f)));
  }
  static METAL_FUNC void store(device uchar* row, threadgroup const float* x, uint columns, uint lane) {
    constexpr float zero = Bits == 8 ? 128.0f : 8.0f, least = Bits == 8 ? 1.0f : 0.0f, most = 2.0f * zero - 1.0f;
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
      if (Bits == 8 && i < columns) row[i] = uchar(code);
      if (Bits == 4 && i < columns && lane % 2 == 0) row[i / 2] = uchar(code | next << 4);
      if (lane == 0) scales[b] = half(finite ? scale : NAN);
    }
    if (lane == 0 && (columns * Bits / 8 + 2 * blocks) % 4) scales[blocks] = half(0.0f);
  }
};

} // namespace foundry
