// Q3_K: 256 weights in sixteen sub-blocks of 16, each with a 6-bit scale around 32, in units of an f16. The lower two
// bits of a code lie as in Q2_K; the third, for weight j of each 32, in byte j of `hmask`; codes are around 4.
#pragma once
#include "search.h"

namespace foundry {

struct block_q3_k {
  uint16_t hmask[16];
  uint16_t qs[32];
  uint8_t scales[12]; // eight bytes of low nibbles, s and s + 8; four of upper pairs, s, s + 4, s + 8 and s + 12
  foundry_half d;
};
static_assert(sizeof(block_q3_k) == 110, "GGUF Q3_K");

struct Q3_K {
  using block = block_q3_k;
  FOUNDRY_CONST int block_size = 256;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 4;
  FOUNDRY_CONST bool subnormal_codes = true;
  FOUNDRY_SCALES(1, FOUNDRY_SCALE(d))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    FOUNDRY_DEVICE const uint16_t* words = b.qs + i / 16 * 16 + i % 4 * 4;
    FOUNDRY_DEVICE const uint16_t* high = b.hmask + i % 4 * 4;
    for (short j = 0; j < 4; ++j) {
      const uint32_t low = uint32_t(words[j]) >> i / 4 % 4 * 2 & 0x0303;
      two_codes<7, 4>(low | (uint32_t(high[j]) >> i / 4 & 0x0101) << 2, w + 2 * j);
    }
    const short s = i / 2;
    const int scale = (b.scales[s % 8] >> s / 8 * 4 & 0xf) | (b.scales[8 + s % 4] >> s / 4 * 2 & 3) << 4;
    return widen(b.d) * float(scale - 32);
  }

#ifdef __METAL_VERSION__
  template <bool Words> struct Codes {
    FOUNDRY_CONST int chunks = 4, groups = 4;
    FOUNDRY_CONST bool has_offset = false;
    UnalignedWords<2, Words, true> high, q;
    UnalignedWords<3, Words, true> scales;
    foundry_half d;

    static METAL_FUNC uint first(uint i) { return i / 4 * 128 + i % 4 * 8; }
    static METAL_FUNC constexpr uint at(int c) { return c * 32; }
    static METAL_FUNC constexpr float ratio(int) { return 1.0f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      const bool odd = k / 256 % 2;
      high.read(b.hmask + k % 32 / 2, odd);
      q.read(b.qs + k % 256 / 128 * 16 + k % 32 / 2, odd);
      scales.read((device const uint16_t*)b.scales, odd);
      d = b.d;
    }
    METAL_FUNC void codes(uint k, int c, uint base, thread float (&w)[chunk]) const thread {
      const bool odd = k / 256 % 2;
      for (short j = 0; j < 2; ++j) {
        const uint32_t upper = high.word(j, odd) >> (k % 256 / 128 * 4 + c) & 0x01010101u;
        split_codes((q.word(j, odd) >> 2 * c & 0x03030303u) | upper << 2, 0x00ff00ffu, base, 4.0h, w + 4 * j);
      }
    }
    METAL_FUNC float scale(uint k, int g) const thread {
      const bool odd = k / 256 % 2;
      const uint32_t shift = k % 32 / 16 * 8 + k % 256 / 128 * 4;
      const uint32_t low = scales.word(g / 2, odd) >> shift >> g % 2 * 16 & 0xf;
      const uint32_t upper = scales.word(2, odd) >> shift >> (g % 2 * 16 + g / 2 * 2) & 3;
      return widen(d) * code<0, 0x3f, 0, 32>(low | upper << 4);
    }
    METAL_FUNC float offset(uint, int) const thread { return 0.0f; }
  };
#else
  static void pack(search::Weights w, block& b) {
    const search::Block<search::Whole<-4, 3>, 16, 16, -32, 31, false> best(w);
    b = {};
    b.d = best.d;
    for (int s = 0; s < 16; ++s) {
      const int scale = best.scales[s] + 32;
      b.scales[s % 8] |= static_cast<uint8_t>((scale & 0xf) << s / 8 * 4);
      b.scales[8 + s % 4] |= static_cast<uint8_t>(scale >> 4 << s / 4 * 2);
      best.values(w, s, [&](int n, int value) {
        const int code = value + 4;
        search::put(b.qs, n / 128 * 32 + n % 32, (code & 3) << n / 32 % 4 * 2);
        search::put(b.hmask, n % 32, (code >> 2) << n / 32);
      });
    }
  }
#endif
};

FOUNDRY_FORMAT(Q3_K, q3_k, 11)

} // namespace foundry
