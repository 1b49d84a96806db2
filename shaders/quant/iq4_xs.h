// IQ4_XS: 256 weights in eight sub-blocks of 32 as in IQ4_NL, each with a 6-bit scale around 32, in units of an f16.
#pragma once
#include "iq4_nl.h"

namespace foundry {

struct block_iq4_xs {
  foundry_half d;
  uint16_t scales_h;   // the upper two bits of the scales
  uint8_t scales_l[4]; // their nibbles
  uint16_t qs[64];
};
static_assert(sizeof(block_iq4_xs) == 136, "GGUF IQ4_XS");

struct IQ4_XS {
  using block = block_iq4_xs;
  FOUNDRY_CONST int block_size = 256;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = false;

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    const short s = i / 4;
    iq4_chunk(b.qs + s * 8 + i % 2 * 4, i / 2 % 2 * 4, w);
    const int scale = (b.scales_l[s / 2] >> s % 2 * 4 & 0xf) | (b.scales_h >> s * 2 & 3) << 4;
    return widen(b.d) * float(scale - 32);
  }

#ifndef __METAL_VERSION__
  static void pack(const float* w, block& b) {
    const search::Block<IQ4Values, 8, 32, -32, 31, false> best(w);
    b = {};
    b.d = best.d;
    for (int s = 0; s < 8; ++s) {
      const int scale = best.scales[s] + 32;
      b.scales_l[s / 2] |= static_cast<uint8_t>((scale & 0xf) << s % 2 * 4);
      b.scales_h |= static_cast<uint16_t>(scale >> 4 << s * 2);
      best.values(w, s, [&](int n, int value) {
        search::put(b.qs, s * 16 + n % 16, IQ4Values::code(value) << n / 16 % 2 * 4);
      });
    }
  }
#endif
};

FOUNDRY_FORMAT(IQ4_XS, iq4_xs, 23)

} // namespace foundry
