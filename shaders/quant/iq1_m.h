// IQ1_M: IQ1_S with sixteen sub-blocks of 16, each with an odd scale, and eight weights that are moved together. The
// nibbles of the f16 lie above the scales.
#pragma once
#include "iq1_s.h"

namespace foundry {

struct block_iq1_m {
  uint8_t qs[32];     // the lower eight bits of the entries
  uint8_t qh[16];     // nibbles: their upper three, and whether they are moved down
  uint16_t scales[4]; // four of three bits, a nibble of the f16
};
static_assert(sizeof(block_iq1_m) == 56, "GGUF IQ1_M");

struct IQ1_M {
  using block = block_iq1_m;
  FOUNDRY_CONST int block_size = 256;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = false;
  FOUNDRY_SCALES(8, FOUNDRY_SCALE(scales))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    const uint32_t high = uint32_t(b.qh[i / 2]) >> i % 2 * 4;
    iq1_chunk(b.qs[i] | (high & 7) << 8, (high & 8) != 0, w);
    FOUNDRY_DEVICE const uint16_t* s = b.scales;
    const uint32_t d = s[0] >> 12 | (s[1] >> 8 & 0xf0) | (s[2] >> 4 & 0xf00) | (s[3] & 0xf000);
    return half_of_bits(d) * float(2 * (uint32_t(s[i / 8]) >> i / 2 % 4 * 3 & 7) + 1);
  }
};

FOUNDRY_FORMAT(IQ1_M, iq1_m, 29)

} // namespace foundry
