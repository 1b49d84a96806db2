// Q5_K: Q4_K with a fifth bit: bit s of byte j of `qh` is that of weight j of sub-block s.
#pragma once
#include "q4_k.h"

namespace foundry {

struct block_q5_k {
  foundry_half d, dmin;
  uint8_t scales[12];
  uint16_t qh[16];
  uint16_t qs[64];
};
static_assert(sizeof(block_q5_k) == 176, "GGUF Q5_K");

struct Q5_K {
  using block = block_q5_k;
  FOUNDRY_CONST int block_size = 256;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 16;
  FOUNDRY_CONST bool subnormal_codes = true;
  FOUNDRY_SCALES(1, FOUNDRY_SCALE(d), FOUNDRY_SCALE(dmin))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    FOUNDRY_DEVICE const uint16_t* words = b.qs + i / 8 * 16 + i % 4 * 4;
    FOUNDRY_DEVICE const uint16_t* high = b.qh + i % 4 * 4;
    const ScaleAndOffset unit = scale_and_offset(b, i / 4);
    for (short j = 0; j < 4; ++j) {
      const uint32_t low = uint32_t(words[j]) >> (i & 4) & 0x0f0f;
      two_weights<0x1f>(low | (uint32_t(high[j]) >> i / 4 & 0x0101) << 4, unit.d, unit.offset, w + 2 * j);
    }
    return 1.0f;
  }

#ifdef __METAL_VERSION__
  template <bool Words> struct Codes {
    using Scales = ScalesOfK<Words>;
    FOUNDRY_CONST int chunks = 4, groups = 2;
    FOUNDRY_CONST bool has_offset = true;
    Scales scales;
    Bytes<4, Words ? 16 : 2> high, q;

    static METAL_FUNC uint first(uint i) { return Scales::first(i); }
    static METAL_FUNC constexpr uint at(int c) { return Scales::at(c); }
    static METAL_FUNC constexpr float ratio(int) { return 1.0f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      scales.read(b);
      high.read(b.qh + k % 64 / 2);
      q.read(b.qs + k % 256 / 64 * 16 + k % 64 / 2);
    }
    METAL_FUNC void codes(uint k, int c, uint base, thread float (&w)[chunk]) const thread {
      for (short j = 0; j < 2; ++j) {
        const int at = c % 2 * 2 + j;
        const uint32_t fifth = high.word(at) >> (k / 64 % 4 * 2 + c / 2) & 0x01010101u;
        split_codes((q.word(at) >> c / 2 * 4 & 0x0f0f0f0fu) | fifth << 4, 0x00ff00ffu, base, 0.0h, w + 4 * j);
      }
    }
    METAL_FUNC float scale(uint k, int g) const thread { return scales.scale(k, g); }
    METAL_FUNC float offset(uint k, int g) const thread { return scales.offset(k, g); }
  };
#else
  static void pack(search::Weights w, block& b) {
    const search::Block<search::Whole<0, 31>, 8, 32, 0, 63, true> best(w);
    b = {};
    pack_scales(best, b);
    for (int s = 0; s < 8; ++s)
      best.values(w, s, [&](int n, int value) {
        search::put(b.qs, s / 2 * 32 + n % 32, (value & 0xf) << s % 2 * 4);
        search::put(b.qh, n % 32, (value >> 4) << s);
      });
  }
#endif
};

FOUNDRY_FORMAT(Q5_K, q5_k, 13)

} // namespace foundry
