// Q1_0: 128 weights of 1 and -1 (bit clear) times an f16.
#pragma once
#include "format.h"

namespace foundry {

struct block_q1_0 {
  foundry_half d;
  uint8_t qs[16];
};
static_assert(sizeof(block_q1_0) == 18, "GGUF Q1_0");

struct Q1_0 {
  using block = block_q1_0;
  FOUNDRY_CONST int block_size = 128;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = false;
  FOUNDRY_SCALES(1, FOUNDRY_SCALE(d))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    for (short j = 0; j < chunk; ++j) w[j] = b.qs[i] >> j & 1 ? 1.0f : -1.0f;
    return widen(b.d);
  }

#ifndef __METAL_VERSION__
  static void pack(const float* w, block& b) { // the mean magnitude is the scale of the least error
    double sum = 0.0;
    for (int j = 0; j < block_size; ++j) sum += std::fabs(w[j]);
    b.d = narrow(static_cast<float>(sum / block_size));
    for (int j = 0; j < block_size; ++j) {
      const int bit = (w[j] >= 0.0f) << j % 8;
      b.qs[j / 8] = static_cast<uint8_t>(j % 8 ? b.qs[j / 8] | bit : bit);
    }
  }
#endif
};

FOUNDRY_FORMAT(Q1_0, q1_0, 41)

} // namespace foundry
