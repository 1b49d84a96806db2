// TQ2_0: 256 weights of -1, 0 and 1 (and 2, which no encoder writes) times an f16, in pairs of bits as in Q2_K.
#pragma once
#include "format.h"

namespace foundry {

struct block_tq2_0 {
  uint16_t qs[32];
  foundry_half d;
};
static_assert(sizeof(block_tq2_0) == 66, "GGUF TQ2_0");

#ifndef __METAL_VERSION__
// Codes 0, 1 and 2 of 256 weights by their share of the largest, which is the scale.
template <typename Block> void pack_ternary(const float* w, Block& b, uint8_t (&codes)[256]) {
  float largest = 0.0f;
  for (int j = 0; j < 256; ++j) largest = std::fmax(largest, std::fabs(w[j]));
  const float inverse = reciprocal(largest);
  b.d = narrow(largest);
  for (int j = 0; j < 256; ++j) codes[j] = static_cast<uint8_t>(1 + static_cast<int>(std::round(w[j] * inverse)));
}
#endif

struct TQ2_0 {
  using block = block_tq2_0;
  FOUNDRY_CONST int block_size = 256;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = false;
  FOUNDRY_SCALES(0, FOUNDRY_SCALE(d))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    FOUNDRY_DEVICE const uint16_t* words = b.qs + i / 16 * 16 + i % 4 * 4;
    for (short j = 0; j < 4; ++j) two_codes<3, 1>(uint32_t(words[j]) >> i / 4 % 4 * 2, w + 2 * j);
    return widen(b.d);
  }

#ifndef __METAL_VERSION__
  static void pack(const float* w, block& b) {
    uint8_t codes[256];
    pack_ternary(w, b, codes);
    for (int j = 0; j < 32; ++j) {
      const uint8_t* first = codes + j / 16 * 128 + j % 16 * 2;
      int word = 0;
      for (int n = 0; n < 4; ++n) word |= (first[32 * n] | first[32 * n + 1] << 8) << 2 * n;
      b.qs[j] = static_cast<uint16_t>(word);
    }
  }
#endif
};

FOUNDRY_FORMAT(TQ2_0, tq2_0, 35)

} // namespace foundry
