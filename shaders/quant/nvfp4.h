// NVFP4: 64 weights in four sub-blocks of 16, each with a scale of 8 bits (E4M3, its sign ignored), and floats of 4
// bits as in MXFP4: the low nibbles of eight bytes, then the high ones.
#pragma once
#include "mxfp4.h"

namespace foundry {

struct block_nvfp4 {
  uint8_t scales[4];
  uint8_t qs[32];
};
static_assert(sizeof(block_nvfp4) == 36, "GGUF NVFP4");

struct NVFP4 {
  using block = block_nvfp4;
  FOUNDRY_CONST int block_size = 64;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = false;
  FOUNDRY_SCALES(1, FOUNDRY_BYTES(scales, ue4m3))

  static inline float scale(uint32_t bits) { // half of what it says, as the values of codes are doubled
    if (bits == 0x7f) return 0.0f;           // NaN elsewhere
    const uint32_t exponent = bits >> 3 & 0xf, mantissa = bits & 7;
    return exponent == 0 ? float(mantissa) * 0.0009765625f : float_of_bits((exponent + 119) << 23 | mantissa << 20);
  }

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    for (short j = 0; j < chunk; ++j) w[j] = MXFP4::value(uint32_t(b.qs[i / 2 * 8 + j]) >> i % 2 * 4);
    return scale(b.scales[i / 2]);
  }
};

FOUNDRY_FORMAT(NVFP4, nvfp4, 40)

// The same with the factor that some files have for each tensor, in each block: products then need nothing else.
struct block_nvfp4_f32 {
  float factor;
  block_nvfp4 inner;
};
static_assert(sizeof(block_nvfp4_f32) == 40, "a float and NVFP4");

struct NVFP4_F32 {
  using block = block_nvfp4_f32;
  FOUNDRY_CONST int block_size = 64;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = false;
  FOUNDRY_SCALES(1, FOUNDRY_SCALE(factor), FOUNDRY_BYTES(inner.scales, ue4m3))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int c, FOUNDRY_THREAD float (&w)[chunk]) {
    const float d = NVFP4::unpack(b.inner, i, c, w);
    for (short j = 0; j < chunk; ++j) w[j] *= d; // exact, so that the factor rounds once
    return b.factor;
  }
};

FOUNDRY_FORMAT(NVFP4_F32, nvfp4_f32, -1)

} // namespace foundry
