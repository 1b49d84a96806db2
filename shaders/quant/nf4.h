// NF4 and FP4 of bitsandbytes: codes of 4 bits that stand for sixteen values between -1 and 1, and for each 64 weights
// the largest magnitude. Blocks of ours, as in affine.h.
#pragma once
#include "affine.h"

namespace foundry {

// Quantiles of a normal distribution.
FOUNDRY_CONST float nf4_values[16] = {-1.0f,
                                      -0.6961928009986877f,
                                      -0.5250730514526367f,
                                      -0.39491748809814453f,
                                      -0.28444138169288635f,
                                      -0.18477343022823334f,
                                      -0.09105003625154495f,
                                      0.0f,
                                      0.07958029955625534f,
                                      0.16093020141124725f,
                                      0.24611230194568634f,
                                      0.33791524171829224f,
                                      0.44070982933044434f,
                                      0.5626170039176941f,
                                      0.7229568362236023f,
                                      1.0f};

// Floats of 4 bits over the largest of them; bit 3 is the sign.
FOUNDRY_CONST float fp4_values[16] = {0.0f,
                                      0.0052083334885537624f,
                                      0.6666666865348816f,
                                      1.0f,
                                      0.3333333432674408f,
                                      0.5f,
                                      0.1666666716337204f,
                                      0.25f,
                                      0.0f,
                                      -0.0052083334885537624f,
                                      -0.6666666865348816f,
                                      -1.0f,
                                      -0.3333333432674408f,
                                      -0.5f,
                                      -0.1666666716337204f,
                                      -0.25f};

struct NF4Values {
  static inline float at(uint32_t code) { return nf4_values[code]; }
};
struct FP4Values {
  static inline float at(uint32_t code) { return fp4_values[code]; }
};

struct block_values {
  float largest;
  uint32_t qs[8];
};
static_assert(sizeof(block_values) == 36, "no padding");

template <typename Values> struct FourBits {
  using block = block_values;
  FOUNDRY_CONST int block_size = 64;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = false;
  FOUNDRY_SCALES(0, FOUNDRY_SCALE(largest))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    const uint32_t codes = b.qs[i];
    for (short j = 0; j < chunk; ++j) w[j] = Values::at(codes >> 4 * j & 15);
    return b.largest;
  }

#ifndef __METAL_VERSION__
  static void pack(const float* w, block& b) {
    b = block{};
    for (int j = 0; j < block_size; ++j) b.largest = std::fmax(b.largest, std::fabs(w[j]));
    const float inverse = reciprocal(b.largest);
    for (int j = 0; j < block_size; ++j) {
      uint32_t best = 0;
      for (uint32_t code = 1; code < 16; ++code) {
        if (std::fabs(Values::at(code) - w[j] * inverse) < std::fabs(Values::at(best) - w[j] * inverse)) best = code;
      }
      pack_code<4>(b.qs, j, best);
    }
  }
#endif
};

using NF4 = FourBits<NF4Values>;
using FP4 = FourBits<FP4Values>;

FOUNDRY_FORMAT(NF4, nf4, -1)
FOUNDRY_FORMAT(FP4, fp4, -1)

} // namespace foundry
