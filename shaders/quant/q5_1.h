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

// Codes of five bits: chunk i + 2 * c of a block of 32, less `Zero`.
template <int Zero, typename Block>
inline void five_bits(FOUNDRY_DEVICE const Block& b, short i, int c, FOUNDRY_THREAD float (&w)[chunk]) {
  const uint32_t high = uint32_t(b.qh[c]) >> i * 8; // bit j: that of weight j of the chunk
  uint32_t q[4];
  for (short j = 0; j < 4; ++j) {
    const uint32_t two = high >> 2 * j;
    q[j] = (uint32_t(b.qs[i * 4 + j]) >> 4 * c & 0x0f0f) | (two & 1) << 4 | (two & 2) << 11;
  }
  byte_codes<0x1f, Zero>(q, w);
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
    five_bits<0>(b, i, c, w);
    for (short j = 0; j < chunk; ++j) w[j] = widen(b.d) * w[j] + widen(b.m);
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
