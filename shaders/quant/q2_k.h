// Q2_K: 256 weights in sixteen sub-blocks of 16, each with a scale and an offset of 4 bits, in units of two f16. Each
// half of the block is 32 bytes: the four pairs of bits of byte j are weights j, j + 32, j + 64 and j + 96.
#pragma once
#include "search.h"

namespace foundry {

struct block_q2_k {
  uint8_t scales[16]; // the scale low, the offset high
  uint16_t qs[32];
  foundry_half d, dmin;
};
static_assert(sizeof(block_q2_k) == 84, "GGUF Q2_K");

struct Q2_K {
  using block = block_q2_k;
  FOUNDRY_CONST int block_size = 256;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = false;

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    FOUNDRY_DEVICE const uint16_t* words = b.qs + i / 16 * 16 + i % 4 * 4;
    const uint32_t scale = b.scales[i / 2];
    const float d = widen(b.d) * float(scale & 0xf), m = widen(b.dmin) * float(scale >> 4); // exact in f32
    for (short j = 0; j < 4; ++j) two_weights<3>(uint32_t(words[j]) >> i / 4 % 4 * 2, d, -m, w + 2 * j);
    return 1.0f;
  }

#ifndef __METAL_VERSION__
  static void pack(const float* w, block& b) {
    const search::Block<search::Whole<0, 3>, 16, 16, 0, 15, true> best(w);
    b = {};
    b.d = best.d;
    b.dmin = best.m;
    for (int s = 0; s < 16; ++s) {
      b.scales[s] = static_cast<uint8_t>(best.scales[s] | best.offsets[s] << 4);
      best.values(w, s, [&](int n, int value) { search::put(b.qs, n / 128 * 32 + n % 32, value << n / 32 % 4 * 2); });
    }
  }
#endif
};

FOUNDRY_FORMAT(Q2_K, q2_k, 10)

} // namespace foundry
