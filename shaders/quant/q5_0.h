// Q5_0: 32 weights, an f16 scale and 5-bit codes around 16, which lie as in Q5_1.
#pragma once
#include "q5_1.h"

namespace foundry {

struct block_q5_0 {
  foundry_half d;
  uint16_t qh[2];
  uint16_t qs[8];
};
static_assert(sizeof(block_q5_0) == 22, "GGUF Q5_0");

struct Q5_0 {
  using block = block_q5_0;
  FOUNDRY_CONST int block_size = 32;
  FOUNDRY_CONST int shared = 2;
  FOUNDRY_CONST bool has_codes = false;

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int c, FOUNDRY_THREAD float (&w)[chunk]) {
    for (short j = 0; j < 4; ++j) two_codes<0x1f, 16>(five_bits(b, i, c, j), w + 2 * j);
    return widen(b.d);
  }

#ifndef __METAL_VERSION__
  static void pack(const float* w, block& b) {
    float extreme = w[0]; // the first of the largest magnitude, with its sign: it gets code 0
    for (int j = 1; j < block_size; ++j)
      if (std::fabs(w[j]) > std::fabs(extreme)) extreme = w[j];
    const float d = extreme / -16.0f;
    const float inverse = reciprocal(d);
    b.d = narrow(d);
    uint8_t codes[32];
    for (int j = 0; j < block_size; ++j) { // the product is rounded to f32 before the sum, as the reference does it
      const float scaled = static_cast<float>(static_cast<double>(w[j]) * inverse) + 16.5f;
      codes[j] = static_cast<uint8_t>(std::fmin(std::fmax(scaled, 0.0f), 31.0f));
    }
    pack_five_bits(codes, b.qh, b.qs);
  }
#endif
};

FOUNDRY_FORMAT(Q5_0, q5_0, 6)

} // namespace foundry
