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

#ifndef __METAL_VERSION__
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
  FOUNDRY_CONST bool has_codes = false;

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int c, FOUNDRY_THREAD float (&w)[chunk]) {
    const float d = widen(b.d), m = widen(b.m);
    for (short j = 0; j < 4; ++j) two_weights<0x1f>(five_bits(b, i, c, j), d, m, w + 2 * j);
    return 1.0f;
  }

#ifndef __METAL_VERSION__
  static void pack(const float* w, block& b) {
    uint8_t codes[32];
    pack_between(w, b, 31, codes);
    pack_five_bits(codes, b.qh, b.qs);
  }
#endif
};

FOUNDRY_FORMAT(Q5_1, q5_1, 7)

} // namespace foundry
