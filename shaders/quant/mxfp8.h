// MXFP8: 32 weights, a power of two as their scale and floats of 8 bits (E4M3), as mlx has them in two tensors.
#pragma once
#include "format.h"

namespace foundry {

struct block_mxfp8 {
  uint8_t e; // the scale is 2^(e - 127)
  uint8_t qs[32];
};
static_assert(sizeof(block_mxfp8) == 33, "no padding");

struct MXFP8 {
  using block = block_mxfp8;
  FOUNDRY_CONST int block_size = 32;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 2;
  FOUNDRY_SCALES(0, FOUNDRY_BYTES(e, e8m0_480))

  static inline float scale(uint32_t e) { return float_of_bits(e == 0 ? 0x00400000u : e << 23); }

  static inline float value(uint32_t code) { // up to 480: what others have as NaN is a number in mlx
    const uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
    const float magnitude =
        exponent == 0 ? float(mantissa) * 0.001953125f : float_of_bits((exponent + 120) << 23 | mantissa << 20);
    return code & 0x80 ? -magnitude : magnitude;
  }

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    for (short j = 0; j < chunk; ++j) w[j] = value(b.qs[i * 8 + j]);
    return scale(b.e);
  }

#ifdef __METAL_VERSION__
  template <bool Words> struct Codes {
    FOUNDRY_CONST int chunks = 2, groups = 1;
    FOUNDRY_CONST bool has_offset = false;
    AnyBytes<4, Words> q;
    uint32_t e;

    static METAL_FUNC uint first(uint i) { return i * 16; }
    static METAL_FUNC constexpr uint at(int c) { return c * 8; }
    static METAL_FUNC constexpr float ratio(int) { return 256.0f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      q.read(b.qs + k % 32, k / 32 % 2 == 0);
      e = b.e;
    }
    METAL_FUNC void codes(uint k, int c, uint, thread float (&w)[chunk]) const thread {
      for (short j = 0; j < 2; ++j) {
        const metal::uint2 bits = q.halves(2 * c + j, k / 32 % 2 == 0);
        interleave(halves_of_e4m3(bits.x), halves_of_e4m3(bits.y), w + 4 * j);
      }
    }
    METAL_FUNC float scale(uint, int) const thread { return MXFP8::scale(e); }
    METAL_FUNC float offset(uint, int) const thread { return 0.0f; }
  };
#else
  // The nearest of the values up to 448.
  static uint8_t code(float v) {
    const float magnitude = std::fabs(v);
    int exponent;
    std::frexp(magnitude, &exponent);
    exponent = magnitude == 0.0f || exponent < -5 ? -6 : exponent - 1; // below 2^-6 they are subnormal
    const float code = float((exponent + 6) * 8) + std::nearbyint(std::ldexp(magnitude, 3 - exponent));
    return static_cast<uint8_t>(static_cast<uint8_t>(std::fmin(code, 126.0f)) | (std::signbit(v) ? 0x80 : 0));
  }

  // No weight is beyond the range; mlx rounds the scale to the nearest, which costs the largest up to a third.
  static void pack(const float* w, block& b) {
    float largest = 0.0f;
    for (int j = 0; j < block_size; ++j) largest = std::fmax(largest, std::fabs(w[j]));
    const float power = largest > 0.0f ? std::ceil(std::log2(largest / 448.0f)) : -127.0f;
    b.e = static_cast<uint8_t>(std::fmin(std::fmax(power, -127.0f), 127.0f) + 127.0f);
    for (int j = 0; j < block_size; ++j) b.qs[j] = code(w[j] / scale(b.e));
  }
#endif
};

FOUNDRY_FORMAT(MXFP8, mxfp8, -1)

} // namespace foundry
