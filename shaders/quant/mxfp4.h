// MXFP4: 32 weights, a power of two as their scale and floats of 4 bits (E2M1), which lie as in Q4_0.
#pragma once
#include "format.h"

namespace foundry {

struct block_mxfp4 {
  uint8_t e; // the scale is 2^(e - 128): values are doubled, so that they are whole
  uint8_t qs[16];
};
static_assert(sizeof(block_mxfp4) == 17, "GGUF MXFP4");

FOUNDRY_CONST float mxfp4_values[16] = {0.0f, 1.0f,  2.0f,  3.0f,  4.0f,  6.0f,  8.0f,  12.0f,
                                        0.0f, -1.0f, -2.0f, -3.0f, -4.0f, -6.0f, -8.0f, -12.0f};

struct MXFP4 {
  using block = block_mxfp4;
  FOUNDRY_CONST int block_size = 32;
  FOUNDRY_CONST int shared = 2;
  FOUNDRY_CONST bool has_codes = false;
  FOUNDRY_SCALES(0, FOUNDRY_BYTES(e, e8m0_6))

  static inline float scale(uint32_t e) { // a subnormal for e < 2
    return float_of_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  }

  static inline float value(uint32_t code) { return mxfp4_values[code & 0xf]; }

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int c, FOUNDRY_THREAD float (&w)[chunk]) {
    for (short j = 0; j < chunk; ++j) w[j] = value(uint32_t(b.qs[i * 8 + j]) >> 4 * c);
    return scale(b.e);
  }

#ifndef __METAL_VERSION__
  static void pack(const float* w, block& b) {
    float largest = 0.0f;
    for (int j = 0; j < block_size; ++j) largest = std::fmax(largest, std::fabs(w[j]));
    b.e = largest > 0.0f ? static_cast<uint8_t>(std::fmax(std::floor(std::log2(largest)) + 125.0f, 0.0f)) : 0;
    const auto nearest = [&](float weight) { // the first of those as near
      uint32_t best = 0;
      float least = std::fabs(weight);
      for (uint32_t code = 1; code < 16; ++code) {
        const float error = std::fabs(scale(b.e) * value(code) - weight);
        if (error < least) best = code, least = error;
      }
      return best;
    };
    for (int j = 0; j < 16; ++j) b.qs[j] = static_cast<uint8_t>(nearest(w[j]) | nearest(w[j + 16]) << 4);
  }
#endif
};

FOUNDRY_FORMAT(MXFP4, mxfp4, 39)

} // namespace foundry
