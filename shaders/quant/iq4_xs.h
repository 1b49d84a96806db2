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
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 4;
  FOUNDRY_SCALES(1, FOUNDRY_SCALE(d))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    const short s = i / 4;
    iq4_chunk(b.qs + s * 8 + i % 2 * 4, i / 2 % 2 * 4, w);
    const int scale = (b.scales_l[s / 2] >> s % 2 * 4 & 0xf) | (b.scales_h >> s * 2 & 3) << 4;
    return widen(b.d) * float(scale - 32);
  }

#ifdef __METAL_VERSION__
  template <bool Words> struct Codes {
    FOUNDRY_CONST int chunks = 4, groups = 1;
    FOUNDRY_CONST bool has_offset = false;
    Bytes<2, Words ? 4 : 2> head;
    Bytes<4, Words ? 4 : 2> q;

    static METAL_FUNC uint first(uint i) { return i * 32; }
    static METAL_FUNC constexpr uint at(int c) { return c * 8; }
    static METAL_FUNC constexpr float ratio(int) { return 1.0f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      head.read(&b);
      q.read(b.qs + k % 256 / 4);
    }
    METAL_FUNC void codes(uint, int c, uint, thread float (&w)[chunk]) const thread {
      for (short j = 0; j < chunk; ++j) w[j] = iq4_values[q.word(c % 2 * 2 + j / 4) >> (j % 4 * 8 + c / 2 * 4) & 0xf];
    }
    METAL_FUNC float scale(uint k, int) const thread {
      const uint32_t s = k / 32 % 8;
      const uint32_t low = head.word(1) >> 4 * s & 0xf, upper = head.word(0) >> (16 + 2 * s) & 3;
      return half_of_bits(head.word(0) & 0xffff) * code<0, 0x3f, 0, 32>(low | upper << 4);
    }
    METAL_FUNC float offset(uint, int) const thread { return 0.0f; }
  };
#else
  static void pack(search::Weights w, block& b) {
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
