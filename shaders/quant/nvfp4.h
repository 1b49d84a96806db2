// NVFP4: 64 weights in four sub-blocks of 16, each with a scale of 8 bits (E4M3, its sign ignored), and floats of 4
// bits as in MXFP4: the low nibbles of eight bytes, then the high ones.
#pragma once
#include "mxfp4.h"

namespace foundry {

struct block_nvfp4 {
  uint8_t scales[4];
  uint8_t qs[32];
};
static_assert(sizeof(block_nvfp4) == 36, "GGUF NVFP4");

template <typename Q, bool Words> struct CodesOfNvfp4; // below

struct NVFP4 {
  using block = block_nvfp4;
  FOUNDRY_CONST int block_size = 64;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 4;
  FOUNDRY_SCALES(1, FOUNDRY_BYTES(scales, ue4m3))

  static inline float scale(uint32_t bits) { // half of what it says, as the values of codes are doubled
    if (bits == 0x7f) return 0.0f;           // NaN elsewhere
    const uint32_t exponent = bits >> 3 & 0xf, mantissa = bits & 7;
    return exponent == 0 ? float(mantissa) * 0.0009765625f : float_of_bits((exponent + 119) << 23 | mantissa << 20);
  }

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    for (short j = 0; j < chunk; ++j) w[j] = MXFP4::value(uint32_t(b.qs[i / 2 * 8 + j]) >> i % 2 * 4);
    return scale(b.scales[i / 2]);
  }

#ifdef __METAL_VERSION__
  template <bool Words> using Codes = CodesOfNvfp4<NVFP4, Words>;
  static METAL_FUNC device const block& inner(device const block& b) { return b; }
  static METAL_FUNC float factor(device const block&) { return 1.0f; }
#endif
};

FOUNDRY_FORMAT(NVFP4, nvfp4, 40)

// The same with the factor that some files have for each tensor, in each block: products then need nothing else.
struct block_nvfp4_f32 {
  float factor;
  block_nvfp4 inner;
};
static_assert(sizeof(block_nvfp4_f32) == 40, "a float and NVFP4");

struct NVFP4_F32 {
  using block = block_nvfp4_f32;
  FOUNDRY_CONST int block_size = 64;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 4;
  FOUNDRY_SCALES(1, FOUNDRY_SCALE(factor), FOUNDRY_BYTES(inner.scales, ue4m3))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int c, FOUNDRY_THREAD float (&w)[chunk]) {
    const float d = NVFP4::unpack(b.inner, i, c, w);
    for (short j = 0; j < chunk; ++j) w[j] *= d; // exact, so that the factor rounds once
    return b.factor;
  }

#ifdef __METAL_VERSION__
  template <bool Words> using Codes = CodesOfNvfp4<NVFP4_F32, Words>;
  static METAL_FUNC device const block_nvfp4& inner(device const block& b) { return b.inner; }
  static METAL_FUNC float factor(device const block& b) { return b.factor; }
#endif
};

FOUNDRY_FORMAT(NVFP4_F32, nvfp4_f32, -1)

#ifdef __METAL_VERSION__
// Half a block: two sub-blocks, each of low nibbles, then of high ones.
template <typename Q, bool Words> struct CodesOfNvfp4 {
  FOUNDRY_CONST int chunks = 4, groups = 2;
  FOUNDRY_CONST bool has_offset = false;
  metal::conditional_t<Words, Bytes<4, 4>, OddBytes<4, false>> q;
  uint32_t scales[2];
  float factor;

  static METAL_FUNC uint first(uint i) { return i * 32; }
  static METAL_FUNC constexpr uint at(int c) { return c * 8; }
  static METAL_FUNC constexpr float ratio(int) { return 32768.0f; }
  METAL_FUNC void read(device const typename Q::block& b, uint k) thread {
    device const block_nvfp4& inner = Q::inner(b);
    q.read(inner.qs + k % 64 / 2, false);
    for (short g = 0; g < 2; ++g) scales[g] = inner.scales[k % 64 / 16 + g];
    factor = Q::factor(b);
  }
  METAL_FUNC void codes(uint, int c, uint, thread float (&w)[chunk]) const thread {
    for (short j = 0; j < 2; ++j) {
      const metal::uint2 bits = q.halves(c / 2 * 2 + j, false);
      interleave(halves_of_e2m1(bits.x, c % 2), halves_of_e2m1(bits.y, c % 2), w + 4 * j);
    }
  }
  METAL_FUNC float scale(uint, int g) const thread { return factor * NVFP4::scale(scales[g]); }
  METAL_FUNC float offset(uint, int) const thread { return 0.0f; }
};
#endif

} // namespace foundry
