// TQ1_0: 256 weights of -1, 0 and 1 times an f16. A byte is a fraction of 256 whose first digits in base 3 are five
// weights, 32 apart in the first 160 weights and 16 apart in the next 80; the last 16 lie 4 apart in bytes of four.
#pragma once
#include "tq2_0.h"

namespace foundry {

struct block_tq1_0 {
  uint8_t qs[52];
  foundry_half d;
};
static_assert(sizeof(block_tq1_0) == 54, "GGUF TQ1_0");

struct TQ1_0 {
  using block = block_tq1_0;
  FOUNDRY_CONST int block_size = 256;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = false;
  FOUNDRY_SCALES(0, FOUNDRY_SCALE(d))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    for (short j = 0; j < chunk; ++j) {
      const short byte = i < 20 ? i % 4 * 8 + j : i < 30 ? 32 + i % 2 * 8 + j : 48 + j % 4;
      const short digit = i < 20 ? i / 4 : i < 30 ? (i - 20) / 2 : (i - 30) * 2 + j / 4;
      const uint32_t power = digit == 4 ? 81 : 0x1b090301u >> digit * 8 & 0xff; // of 3
      const uint32_t fraction = b.qs[byte] * power & 0xff;
      w[j] = float(int(fraction * 3 >> 8) - 1);
    }
    return widen(b.d);
  }

#ifndef __METAL_VERSION__
  static void pack(const float* w, block& b) {
    uint8_t codes[256];
    pack_ternary(w, b, codes);
    for (int j = 0; j < 52; ++j) {
      const int first = j < 32 ? j : j < 48 ? 160 + j - 32 : 240 + j - 48;
      const int apart = j < 32 ? 32 : j < 48 ? 16 : 4;
      int digits = 0;
      for (int n = 0; n < 5; ++n) digits = digits * 3 + (j < 48 || n < 4 ? codes[first + apart * n] : 0);
      b.qs[j] = static_cast<uint8_t>((digits * 256 + 242) / 243); // rounded up, so that the digits come out again
    }
  }
#endif
};

FOUNDRY_FORMAT(TQ1_0, tq1_0, 34)

} // namespace foundry
