// FP8: groups of floats of 8 bits (E4M3) with a scale in float32. Files keep a scale for a square of weights
// (DeepSeek's and Qwen's), for a row or for a matrix; each block of ours has its own copy, so that products read
// nothing else.
#pragma once
#include "mxfp8.h"

namespace foundry {

template <int Size> struct block_fp8 {
  float scale;
  uint32_t qs[Size / 4]; // four codes each, the first in the lowest byte
};

template <int Size> struct FP8 {
  using block = block_fp8<Size>;
  FOUNDRY_CONST int block_size = Size;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 4;
  FOUNDRY_SCALES(0, FOUNDRY_SCALE(scale), FOUNDRY_BYTES(qs, ue4m3)) // a code may be a NaN
  static_assert(sizeof(block) == 4 + Size, "no padding");

  static inline float value(uint32_t code) {
    return (code & 0x7f) == 0x7f ? float_of_bits(0x7fc00000u) : MXFP8::value(code);
  }

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    for (short j = 0; j < chunk; ++j) w[j] = value(b.qs[2 * i + j / 4] >> j % 4 * 8);
    return b.scale;
  }

#ifdef __METAL_VERSION__
  template <bool Words> struct Codes {
    FOUNDRY_CONST int chunks = 2, groups = 1;
    FOUNDRY_CONST bool has_offset = false;
    Bytes<4, 4> q;
    float factor;

    static METAL_FUNC uint first(uint i) { return i * 16; }
    static METAL_FUNC constexpr uint at(int c) { return c * 8; }
    static METAL_FUNC constexpr float ratio(int) { return 256.0f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      q.read(b.qs + k % Size / 4);
      factor = b.scale;
    }
    METAL_FUNC void codes(uint, int c, uint, thread float (&w)[chunk]) const thread {
      for (short j = 0; j < 2; ++j) {
        const uint32_t bits = q.word(2 * c + j);
        interleave(halves_of_e4m3(bits), halves_of_e4m3(bits >> 8), w + 4 * j);
      }
    }
    // A code that is a NaN is 480 as a half, and makes a NaN of the sum here.
    METAL_FUNC float scale(uint, int) const thread {
      uint32_t carries = 0;
      for (short j = 0; j < 4; ++j) carries |= (q.word(j) & 0x7f7f7f7fu) + 0x01010101u;
      return carries & 0x80808080u ? float_of_bits(0x7fc00000u) : factor;
    }
    METAL_FUNC float offset(uint, int) const thread { return 0.0f; }
  };
#else
  static void pack(const float* w, block& b) {
    float largest = 0.0f;
    for (int j = 0; j < Size; ++j) largest = std::fmax(largest, std::fabs(w[j]));
    b = block{.scale = largest / 448.0f, .qs = {}};
    const float inverse = reciprocal(b.scale);
    for (int j = 0; j < Size; ++j) b.qs[j / 4] |= uint32_t{MXFP8::code(w[j] * inverse)} << j % 4 * 8;
  }
#endif
};

using FP8_G32 = FP8<32>;
using FP8_G64 = FP8<64>;
using FP8_G128 = FP8<128>;
FOUNDRY_FORMAT(FP8_G32, fp8_g32, -1)
FOUNDRY_FORMAT(FP8_G64, fp8_g64, -1)
FOUNDRY_FORMAT(FP8_G128, fp8_g128, -1)

} // namespace foundry
