// MXFP4: 32 weights, a power of two as their scale and floats of 4 bits (E2M1), which lie as in Q4_0.
#pragma once
#include "format.h"

namespace foundry {

struct block_mxfp4 {
  uint8_t e; // the scale is 2^(e - 128): values are doubled, so that they are whole
  uint8_t qs[16];
};
static_assert(sizeof(block_mxfp4) == 17, "GGUF MXFP4");

FOUNDRY_CONST float mxfp4_values[16] = {0.0f, 1.0f,  2.0f,  3.0f,  4.0f,  6.0f,  8.0f,  12.0f,
                                        0.0f, -1.0f, -2.0f, -3.0f, -4.0f, -6.0f, -8.0f, -12.0f};

struct MXFP4 {
  using block = block_mxfp4;
  FOUNDRY_CONST int block_size = 32;
  FOUNDRY_CONST int shared = 2;
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int fragment_columns = 32;
  FOUNDRY_CONST int word = 2;
  FOUNDRY_SCALES(0, FOUNDRY_BYTES(e, e8m0_6))

  static inline float scale(uint32_t e) { // a subnormal for e < 2
    return float_of_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
  }

  static inline float value(uint32_t code) { return mxfp4_values[code & 0xf]; }

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int c, FOUNDRY_THREAD float (&w)[chunk]) {
    for (short j = 0; j < chunk; ++j) w[j] = value(uint32_t(b.qs[i * 8 + j]) >> 4 * c);
    return scale(b.e);
  }

#ifdef __METAL_VERSION__
  template <bool Words> struct Codes {
    FOUNDRY_CONST int chunks = 4, groups = 1;
    FOUNDRY_CONST bool has_offset = false;
    AnyBytes<4, Words> q;
    uint32_t e;

    static METAL_FUNC uint first(uint i) { return i * 32; }
    static METAL_FUNC constexpr uint at(int c) { return c * 8; }
    static METAL_FUNC constexpr float ratio(int) { return 32768.0f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      q.read(b.qs, k / 32 % 2 == 0);
      e = b.e;
    }
    METAL_FUNC void codes(uint k, int c, uint, thread float (&w)[chunk]) const thread {
      for (short j = 0; j < 2; ++j) {
        const metal::uint2 bits = q.halves(c % 2 * 2 + j, k / 32 % 2 == 0);
        interleave(halves_of_e2m1(bits.x, c >= 2), halves_of_e2m1(bits.y, c >= 2), w + 4 * j);
      }
    }
    METAL_FUNC float scale(uint, int) const thread { return MXFP4::scale(e); }
    METAL_FUNC float offset(uint, int) const thread { return 0.0f; }
  };

  template <typename T> struct Fragments {
    FOUNDRY_CONST int groups = 1;
    FOUNDRY_CONST bool has_scale = true, has_offset = false;
    uint32_t q, e;

    METAL_FUNC void read(threadgroup const uint32_t* row, uint past, uint period, uint t) thread {
      const uint first = past + period * sizeof(block), at = first + 1 + 4 * t;
      e = ((threadgroup const uint8_t*)row)[first];
      q = uint32_t((ulong(row[at / 4 + 1]) << 32 | row[at / 4]) >> 8 * (at % 4));
    }
    METAL_FUNC void codes(int, int h, uint32_t, thread metal::vec<T, 2> (&w)[2]) const thread {
      e2m1_pairs(q, h == 1, w);
    }
    static METAL_FUNC void pairs(metal::uint2 x, thread metal::vec<T, 2> (&of)[2]) { even_and_odd<T>(x, of); }
    METAL_FUNC float scale(int) const thread { return 32768.0f * MXFP4::scale(e); }
    METAL_FUNC float offset(int) const thread { return 0.0f; }
  };
#else
  static void pack(const float* w, block& b) {
    float largest = 0.0f;
    for (int j = 0; j < block_size; ++j) largest = std::fmax(largest, std::fabs(w[j]));
    b.e = largest > 0.0f ? static_cast<uint8_t>(std::fmax(std::floor(std::log2(largest)) + 125.0f, 0.0f)) : 0;
    const auto nearest = [&](float weight) { // the first of those as near
      uint32_t best = 0;
      float least = std::fabs(weight);
      for (uint32_t code = 1; code < 16; ++code) {
        const float error = std::fabs(scale(b.e) * value(code) - weight);
        if (error < least) best = code, least = error;
      }
      return best;
    };
    for (int j = 0; j < 16; ++j) b.qs[j] = static_cast<uint8_t>(nearest(w[j]) | nearest(w[j + 16]) << 4);
  }
#endif
};

FOUNDRY_FORMAT(MXFP4, mxfp4, 39)

} // namespace foundry
