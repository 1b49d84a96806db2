// FP8: groups of floats of 8 bits (E4M3) with a scale in float32. Files keep a scale for a square of weights
// (DeepSeek's and Qwen's), for a row or for a matrix; each block of ours has its own copy, so that products read
// nothing else.
#pragma once
#include "mxfp8.h"

namespace foundry {

template <int Size> struct block_fp8 {
  float scale;
  uint32_t qs[Size / 4]; // four codes each, the first in the lowest byte
};

template <int Size> struct FP8 {
  using block = block_fp8<Size>;
  FOUNDRY_CONST int block_size = Size;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = false;
  FOUNDRY_SCALES(0, FOUNDRY_SCALE(scale), FOUNDRY_BYTES(qs, ue4m3)) // a code may be a NaN
  static_assert(sizeof(block) == 4 + Size, "no padding");

  static inline float value(uint32_t code) {
    return (code & 0x7f) == 0x7f ? float_of_bits(0x7fc00000u) : MXFP8::value(code);
  }

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    for (short j = 0; j < chunk; ++j) w[j] = value(b.qs[2 * i + j / 4] >> j % 4 * 8);
    return b.scale;
  }

#ifndef __METAL_VERSION__
  static void pack(const float* w, block& b) {
    float largest = 0.0f;
    for (int j = 0; j < Size; ++j) largest = std::fmax(largest, std::fabs(w[j]));
    b = block{.scale = largest / 448.0f, .qs = {}};
    const float inverse = reciprocal(b.scale);
    for (int j = 0; j < Size; ++j) b.qs[j / 4] |= uint32_t{MXFP8::code(w[j] * inverse)} << j % 4 * 8;
  }
#endif
};

using FP8_G32 = FP8<32>;
using FP8_G64 = FP8<64>;
using FP8_G128 = FP8<128>;
FOUNDRY_FORMAT(FP8_G32, fp8_g32, -1)
FOUNDRY_FORMAT(FP8_G64, fp8_g64, -1)
FOUNDRY_FORMAT(FP8_G128, fp8_g128, -1)

} // namespace foundry
