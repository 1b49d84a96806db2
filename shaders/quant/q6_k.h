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
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 4;
  FOUNDRY_CONST bool subnormal_codes = true;
  FOUNDRY_SCALES(1, FOUNDRY_SCALE(d))

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

#ifdef __METAL_VERSION__
  template <bool Words> struct Codes {
    FOUNDRY_CONST int chunks = 4, groups = 4;
    FOUNDRY_CONST bool has_offset = false;
    UnalignedWords<2, Words, true> low, next, high, scales; // low: of chunks 0 and 2, next: of 1 and 3
    foundry_half d;

    static METAL_FUNC uint first(uint i) { return i / 4 * 128 + i % 4 * 8; }
    static METAL_FUNC constexpr uint at(int c) { return c * 32; }
    static METAL_FUNC constexpr float ratio(int) { return 1.0f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      const bool odd = k / 256 % 2;
      device const uint16_t* nibbles = b.ql + k % 256 / 128 * 32 + k % 32 / 2;
      low.read(nibbles, odd);
      next.read(nibbles + 16, odd);
      high.read(b.qh + k % 256 / 128 * 16 + k % 32 / 2, odd);
      scales.read((device const uint16_t*)b.scales + k % 256 / 128 * 4, odd);
      d = b.d;
    }
    METAL_FUNC void codes(uint k, int c, uint base, thread float (&w)[chunk]) const thread {
      const bool odd = k / 256 % 2;
      for (short j = 0; j < 2; ++j) {
        const uint32_t nibbles = (c % 2 ? next.word(j, odd) : low.word(j, odd)) >> c / 2 * 4 & 0x0f0f0f0fu;
        const uint32_t pairs = high.word(j, odd), upper = c < 2 ? pairs << (4 - 2 * c % 4) : pairs >> 2 * c % 4;
        split_codes(nibbles | (upper & 0x30303030u), 0x00ff00ffu, base, 32.0h, w + 4 * j);
      }
    }
    METAL_FUNC float scale(uint k, int g) const thread {
      const uint32_t bytes = scales.word(g / 2, k / 256 % 2) >> (k % 32 / 16 * 8 + g % 2 * 16);
      return widen(d) * code<0, 0xff, 0x80, 128>(bytes);
    }
    METAL_FUNC float offset(uint, int) const thread { return 0.0f; }
  };
#else
  static void pack(search::Weights w, block& b) {
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
