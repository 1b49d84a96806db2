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
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 4;
  FOUNDRY_CONST bool subnormal_codes = true;
  FOUNDRY_SCALES(1, FOUNDRY_SCALE(d), FOUNDRY_SCALE(dmin))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    FOUNDRY_DEVICE const uint16_t* words = b.qs + i / 16 * 16 + i % 4 * 4;
    const uint32_t scale = b.scales[i / 2];
    const float d = widen(b.d) * float(scale & 0xf), m = widen(b.dmin) * float(scale >> 4); // exact in f32
    for (short j = 0; j < 4; ++j) two_weights<3>(uint32_t(words[j]) >> i / 4 % 4 * 2, d, -m, w + 2 * j);
    return 1.0f;
  }

#ifdef __METAL_VERSION__
  template <bool Words> struct Codes {
    FOUNDRY_CONST int chunks = 4, groups = 4;
    FOUNDRY_CONST bool has_offset = true;
    Bytes<2, Words ? 4 : 2> q, scales;
    Bytes<1, Words ? 4 : 2> units;

    static METAL_FUNC uint first(uint i) { return i / 4 * 128 + i % 4 * 8; }
    static METAL_FUNC constexpr uint at(int c) { return c * 32; }
    static METAL_FUNC constexpr float ratio(int) { return 1.0f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      q.read(b.qs + k % 256 / 128 * 16 + k % 32 / 2);
      scales.read(b.scales + k % 256 / 128 * 8);
      units.read(&b.d);
    }
    METAL_FUNC void codes(uint, int c, uint base, thread float (&w)[chunk]) const thread {
      for (short j = 0; j < 2; ++j) split_codes(q.word(j), 0x00030003u << 2 * c, base, 0.0h, w + 4 * j);
    }
    METAL_FUNC uint32_t scale_and_offset(uint k, int g) const thread {
      return scales.word(g / 2) >> (k % 32 / 16 * 8 + g % 2 * 16);
    }
    METAL_FUNC float scale(uint k, int g) const thread {
      const float d = half_of_bits(units.word(0) & 0xffff) * code<0, 0xf, 0, 0>(scale_and_offset(k, g));
      return d * (1.0f / float(1 << 2 * g)); // codes stay where they are
    }
    METAL_FUNC float offset(uint k, int g) const thread {
      return -half_of_bits(units.word(0) >> 16) * code<4, 0xf, 0, 0>(scale_and_offset(k, g));
    }
  };
#else
  static void pack(search::Weights w, block& b) {
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
