// Q4_1: 32 weights, an f16 scale, an f16 offset and 4-bit codes, which lie as in Q4_0.
#pragma once
#include "format.h"

namespace foundry {

struct block_q4_1 {
  foundry_half d, m;
  uint16_t qs[8];
};
static_assert(sizeof(block_q4_1) == 20, "GGUF Q4_1");

#ifndef __METAL_VERSION__
// Codes 0 .. `top` of 32 weights between the least and the largest; the products are rounded before the sums.
template <typename Block> void pack_between(const float* w, Block& b, int top, uint8_t (&codes)[32]) {
  float least = w[0], largest = w[0];
  for (int j = 1; j < 32; ++j) {
    least = std::fmin(least, w[j]);
    largest = std::fmax(largest, w[j]);
  }
  const float d = (largest - least) / static_cast<float>(top);
  const float inverse = reciprocal(d);
  b.d = narrow(d);
  b.m = narrow(least);
  for (int j = 0; j < 32; ++j) {
    const float scaled = static_cast<float>(static_cast<double>(w[j] - least) * inverse) + 0.5f;
    codes[j] = static_cast<uint8_t>(std::fmin(scaled, static_cast<float>(top)));
  }
}

// The lower four bits of 32 codes, as Q4_0 lays them out.
inline void pack_nibbles(const uint8_t (&codes)[32], uint16_t (&qs)[8]) {
  for (int j = 0; j < 8; ++j) {
    const int low = (codes[2 * j] & 15) | (codes[2 * j + 16] & 15) << 4;
    const int high = (codes[2 * j + 1] & 15) | (codes[2 * j + 17] & 15) << 4;
    qs[j] = static_cast<uint16_t>(low | high << 8);
  }
}
#endif

struct Q4_1 {
  using block = block_q4_1;
  FOUNDRY_CONST int block_size = 32;
  FOUNDRY_CONST int shared = 2;
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 4;
  FOUNDRY_CONST bool subnormal_codes = true;
  FOUNDRY_SCALES(0, FOUNDRY_SCALE(d), FOUNDRY_SCALE(m))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int c, FOUNDRY_THREAD float (&w)[chunk]) {
    const float d = widen(b.d), m = widen(b.m);
    for (short j = 0; j < 4; ++j) two_weights<0xf>(uint32_t(b.qs[i * 4 + j]) >> 4 * c, d, m, w + 2 * j);
    return 1.0f;
  }

#ifdef __METAL_VERSION__
  template <bool Words> struct Codes {
    FOUNDRY_CONST int chunks = 2, groups = 1;
    FOUNDRY_CONST bool has_offset = true;
    Bytes<1, Words ? 4 : 2> head;
    Bytes<2, Words ? 4 : 2> q;

    static METAL_FUNC uint first(uint i) { return i / 2 * 32 + i % 2 * 8; }
    static METAL_FUNC constexpr uint at(int c) { return c * 16; }
    static METAL_FUNC constexpr float ratio(int c) { return c == 0 ? 1.0f : 0.0625f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      head.read(&b);
      q.read(b.qs + k % 32 / 2);
    }
    METAL_FUNC void codes(uint, int c, uint base, thread float (&w)[chunk]) const thread {
      for (short j = 0; j < 2; ++j) split_nibbles(q.word(j), c != 0, base, 0, w + 4 * j);
    }
    METAL_FUNC float scale(uint, int) const thread { return half_of_bits(head.word(0) & 0xffff); }
    METAL_FUNC float offset(uint, int) const thread { return half_of_bits(head.word(0) >> 16); }
  };
#else
  static void pack(const float* w, block& b) {
    uint8_t codes[32];
    pack_between(w, b, 15, codes);
    pack_nibbles(codes, b.qs);
  }
#endif
};

FOUNDRY_FORMAT(Q4_1, q4_1, 3)

} // namespace foundry
