// Q6_K: 256 weights in sixteen sub-blocks of 16, each with a signed 8-bit scale, in units of an f16; codes around 32.
// Of each half of the block, 64 bytes hold the low four bits (nibbles of weights j and j + 64), 32 bytes the upper two.
#pragma once
#include "search.h"

namespace foundry {

struct block_q6_k {
  uint16_t ql[64];
  uint16_t qh[32];
  int8_t scales[16];
  foundry_half d;
};
static_assert(sizeof(block_q6_k) == 210, "GGUF Q6_K");

struct Q6_K {
  using block = block_q6_k;
  FOUNDRY_CONST int block_size = 256;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = false;

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    FOUNDRY_DEVICE const uint16_t* low = b.ql + i / 16 * 32 + i % 8 * 4;
    FOUNDRY_DEVICE const uint16_t* high = b.qh + i / 16 * 16 + i % 4 * 4;
    const short nibble = i / 8 % 2 * 4, pair = i / 4 % 4 * 2;
    for (short j = 0; j < 4; ++j) {
      const uint32_t upper = uint32_t(high[j]) >> pair & 0x0303;
      two_codes<0x3f, 32>((uint32_t(low[j]) >> nibble & 0x0f0f) | upper << 4, w + 2 * j);
    }
    return widen(b.d) * float(b.scales[i / 2]);
  }

#ifndef __METAL_VERSION__
  static void pack(const float* w, block& b) {
    const search::Block<search::Whole<-32, 31>, 16, 16, -128, 127, false> best(w);
    b = {};
    b.d = best.d;
    for (int s = 0; s < 16; ++s) {
      b.scales[s] = static_cast<int8_t>(best.scales[s]);
      best.values(w, s, [&](int n, int value) {
        const int code = value + 32;
        search::put(b.ql, n / 128 * 64 + n % 64, (code & 0xf) << n / 64 % 2 * 4);
        search::put(b.qh, n / 128 * 32 + n % 32, (code >> 4) << n / 32 % 4 * 2);
      });
    }
  }
#endif
};

FOUNDRY_FORMAT(Q6_K, q6_k, 14)

} // namespace foundry
