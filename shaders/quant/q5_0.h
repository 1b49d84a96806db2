// Q5_0: 32 weights, an f16 scale and 5-bit codes around 16, which lie as in Q5_1.
#pragma once
#include "q5_1.h"

namespace foundry {

struct block_q5_0 {
  foundry_half d;
  uint16_t qh[2];
  uint16_t qs[8];
};
static_assert(sizeof(block_q5_0) == 22, "GGUF Q5_0");

struct Q5_0 {
  using block = block_q5_0;
  FOUNDRY_CONST int block_size = 32;
  FOUNDRY_CONST int shared = 2;
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 4;
  FOUNDRY_CONST bool subnormal_codes = true;
  FOUNDRY_SCALES(0, FOUNDRY_SCALE(d))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int c, FOUNDRY_THREAD float (&w)[chunk]) {
    for (short j = 0; j < 4; ++j) two_codes<0x1f, 16>(five_bits(b, i, c, j), w + 2 * j);
    return widen(b.d);
  }

#ifdef __METAL_VERSION__
  template <bool Words> struct Codes {
    FOUNDRY_CONST int chunks = 2, groups = 1;
    FOUNDRY_CONST bool has_offset = false;
    UnalignedWords<1, Words, false> fifth;
    UnalignedWords<2, Words, false> q;
    foundry_half d;

    static METAL_FUNC uint first(uint i) { return i / 2 * 32 + i % 2 * 8; }
    static METAL_FUNC constexpr uint at(int c) { return c * 16; }
    static METAL_FUNC constexpr float ratio(int) { return 1.0f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      const bool odd = k / 32 % 2 == 0;
      fifth.read(b.qh, odd);
      q.read(b.qs + k % 32 / 2, odd);
      d = b.d;
    }
    METAL_FUNC void codes(uint k, int c, uint base, thread float (&w)[chunk]) const thread {
      const bool odd = k / 32 % 2 == 0;
      for (short j = 0; j < 2; ++j) {
        const uint32_t code = join_fifth(q.word(j, odd) >> 4 * c, fifth.word(0, odd) >> (k % 16 + 16 * c + 4 * j));
        split_codes(code, 0x00ff00ffu, base, 16.0h, w + 4 * j);
      }
    }
    METAL_FUNC float scale(uint, int) const thread { return widen(d); }
    METAL_FUNC float offset(uint, int) const thread { return 0.0f; }
  };
#else
  static void pack(const float* w, block& b) {
    float extreme = w[0]; // the first of the largest magnitude, with its sign: it gets code 0
    for (int j = 1; j < block_size; ++j)
      if (std::fabs(w[j]) > std::fabs(extreme)) extreme = w[j];
    const float d = extreme / -16.0f;
    const float inverse = reciprocal(d);
    b.d = narrow(d);
    uint8_t codes[32];
    for (int j = 0; j < block_size; ++j) { // the product is rounded to f32 before the sum, as the reference does it
      const float scaled = static_cast<float>(static_cast<double>(w[j]) * inverse) + 16.5f;
      codes[j] = static_cast<uint8_t>(std::fmin(std::fmax(scaled, 0.0f), 31.0f));
    }
    pack_five_bits(codes, b.qh, b.qs);
  }
#endif
};

FOUNDRY_FORMAT(Q5_0, q5_0, 6)

} // namespace foundry
