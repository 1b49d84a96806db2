// Q5_1: Q4_1 with a fifth bit: bit j of `qh` is that of weight j.
#pragma once
#include "q4_1.h"

namespace foundry {

struct block_q5_1 {
  foundry_half d, m;
  uint16_t qh[2];
  uint16_t qs[8];
};
static_assert(sizeof(block_q5_1) == 24, "GGUF Q5_1");

// Codes of five bits: the word at j of chunk i + 2 * c of a block of 32.
template <typename Block> inline uint32_t five_bits(FOUNDRY_DEVICE const Block& b, short i, int c, short j) {
  const uint32_t two = uint32_t(b.qh[c]) >> (i * 8 + 2 * j);
  return (uint32_t(b.qs[i * 4 + j]) >> 4 * c & 0x0f0f) | (two & 1) << 4 | (two & 2) << 11;
}

#ifdef __METAL_VERSION__
// The lower nibbles of four bytes, with the low four bits of `fifth` above them.
METAL_FUNC uint32_t join_fifth(uint32_t nibbles, uint32_t fifth) {
  return (nibbles & 0x0f0f0f0fu) | ((fifth & 0xf) * 0x02040810u & 0x10101010u); // bit j to bit 8 * j + 4
}
#else
inline void pack_five_bits(const uint8_t (&codes)[32], uint16_t (&qh)[2], uint16_t (&qs)[8]) {
  uint32_t high = 0;
  for (int j = 0; j < 32; ++j) high |= static_cast<uint32_t>(codes[j] >> 4) << j;
  qh[0] = static_cast<uint16_t>(high);
  qh[1] = static_cast<uint16_t>(high >> 16);
  pack_nibbles(codes, qs);
}
#endif

struct Q5_1 {
  using block = block_q5_1;
  FOUNDRY_CONST int block_size = 32;
  FOUNDRY_CONST int shared = 2;
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 4;
  FOUNDRY_CONST bool subnormal_codes = true;
  FOUNDRY_SCALES(0, FOUNDRY_SCALE(d), FOUNDRY_SCALE(m))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int c, FOUNDRY_THREAD float (&w)[chunk]) {
    const float d = widen(b.d), m = widen(b.m);
    for (short j = 0; j < 4; ++j) two_weights<0x1f>(five_bits(b, i, c, j), d, m, w + 2 * j);
    return 1.0f;
  }

#ifdef __METAL_VERSION__
  template <bool Words> struct Codes {
    FOUNDRY_CONST int chunks = 2, groups = 1;
    FOUNDRY_CONST bool has_offset = true;
    Bytes<2, Words ? 4 : 2> head; // and the fifth bits
    Bytes<2, Words ? 4 : 2> q;

    static METAL_FUNC uint first(uint i) { return i / 2 * 32 + i % 2 * 8; }
    static METAL_FUNC constexpr uint at(int c) { return c * 16; }
    static METAL_FUNC constexpr float ratio(int) { return 1.0f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      head.read(&b);
      q.read(b.qs + k % 32 / 2);
    }
    METAL_FUNC void codes(uint k, int c, uint base, thread float (&w)[chunk]) const thread {
      for (short j = 0; j < 2; ++j) {
        const uint32_t code = join_fifth(q.word(j) >> 4 * c, head.word(1) >> (k % 16 + 16 * c + 4 * j));
        split_codes(code, 0x00ff00ffu, base, 0.0h, w + 4 * j);
      }
    }
    METAL_FUNC float scale(uint, int) const thread { return half_of_bits(head.word(0) & 0xffff); }
    METAL_FUNC float offset(uint, int) const thread { return half_of_bits(head.word(0) >> 16); }
  };
#else
  static void pack(const float* w, block& b) {
    uint8_t codes[32];
    pack_between(w, b, 31, codes);
    pack_five_bits(codes, b.qh, b.qs);
  }
#endif
};

FOUNDRY_FORMAT(Q5_1, q5_1, 7)

} // namespace foundry
