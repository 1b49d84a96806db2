// Q4_K: 256 weights in eight sub-blocks of 32, each of which has a scale and an offset of 6 bits, in units of two f16.
// Of each 32 bytes of codes, the low nibbles are one sub-block and the high nibbles the next.
#pragma once
#include "search.h"

namespace foundry {

struct block_q4_k {
  foundry_half d, dmin;
  uint8_t scales[12];
  uint16_t qs[64];
};
static_assert(sizeof(block_q4_k) == 144, "GGUF Q4_K");

// Scale and offset of sub-block s. Both products are exact in f32.
struct ScaleAndOffset {
  float d, offset;
};

template <typename Block> inline ScaleAndOffset scale_and_offset(FOUNDRY_DEVICE const Block& b, short s) {
  uint32_t scale, offset;
  if (s < 4) {
    scale = b.scales[s] & 0x3f;
    offset = b.scales[s + 4] & 0x3f;
  } else { // four bits beside each other, the upper two over the first eight
    scale = (b.scales[s + 4] & 0xf) | (b.scales[s - 4] >> 6 << 4);
    offset = (b.scales[s + 4] >> 4) | (b.scales[s] >> 6 << 4);
  }
  return {widen(b.d) * float(scale), -(widen(b.dmin) * float(offset))};
}

#ifndef __METAL_VERSION__
// The inverse for the codes of eight scales and offsets.
template <typename Best, typename Block> void pack_scales(const Best& best, Block& b) {
  b.d = best.d;
  b.dmin = best.m;
  for (int s = 0; s < 4; ++s) {
    const int scale = best.scales[s + 4], offset = best.offsets[s + 4];
    b.scales[s] = static_cast<uint8_t>(best.scales[s] | scale >> 4 << 6);
    b.scales[s + 4] = static_cast<uint8_t>(best.offsets[s] | offset >> 4 << 6);
    b.scales[s + 8] = static_cast<uint8_t>((scale & 0xf) | (offset & 0xf) << 4);
  }
}
#endif

#ifdef __METAL_VERSION__
// The first 16 bytes of a block of Q4_K or Q5_K: scales and offsets, and where the lower nibbles and the upper ones of
// codes are two groups.
template <bool Words> struct ScalesOfK {
  Bytes<4, Words ? 16 : 2> head;

  template <typename Block> METAL_FUNC void read(device const Block& b) thread { head.read(&b); }
  static METAL_FUNC uint first(uint i) { return i / 2 * 64 + i % 2 * 16; }
  static METAL_FUNC constexpr uint at(int c) { return c / 2 * 32 + c % 2 * 8; }
  // Scales and offsets of both groups, a byte each: of the first four sub-blocks, or of the others, whose bits lie
  // apart.
  METAL_FUNC uint32_t both(uint k) const thread {
    const uint32_t shift = k / 64 % 2 * 16, rest = head.word(3) >> shift;
    const uint32_t low = (head.word(1) >> shift & 0xffff) | head.word(2) >> shift << 16;
    const uint32_t nibbles = (rest & 0x0f0f) | (rest << 12 & 0x0f0f0000);
    return k / 128 % 2 ? nibbles | (low >> 2 & 0x30303030) : low & 0x3f3f3f3f;
  }
  METAL_FUNC float scale(uint k, int g) const thread {
    return half_of_bits(head.word(0) & 0xffff) * code<0, 0x3f, 0, 0>(both(k) >> 8 * g);
  }
  METAL_FUNC float offset(uint k, int g) const thread {
    return -half_of_bits(head.word(0) >> 16) * code<16, 0x3f, 0, 0>(both(k) >> 8 * g);
  }
};
#endif

struct Q4_K {
  using block = block_q4_k;
  FOUNDRY_CONST int block_size = 256;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int fragment_columns = 64;
  FOUNDRY_CONST int word = 16;
  FOUNDRY_CONST bool subnormal_codes = true;
  FOUNDRY_SCALES(1, FOUNDRY_SCALE(d), FOUNDRY_SCALE(dmin))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    FOUNDRY_DEVICE const uint16_t* words = b.qs + i / 8 * 16 + i % 4 * 4;
    const ScaleAndOffset unit = scale_and_offset(b, i / 4);
    for (short j = 0; j < 4; ++j) two_weights<0xf>(uint32_t(words[j]) >> (i & 4), unit.d, unit.offset, w + 2 * j);
    return 1.0f;
  }

#ifdef __METAL_VERSION__
  template <bool Words> struct Codes {
    using Scales = ScalesOfK<Words>;
    FOUNDRY_CONST int chunks = 4, groups = 2;
    FOUNDRY_CONST bool has_offset = true;
    Scales scales;
    Bytes<4, Words ? 16 : 2> q;

    static METAL_FUNC uint first(uint i) { return Scales::first(i); }
    static METAL_FUNC constexpr uint at(int c) { return Scales::at(c); }
    static METAL_FUNC constexpr float ratio(int) { return 1.0f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      scales.read(b);
      q.read(b.qs + k % 256 / 64 * 16 + k % 64 / 2);
    }
    METAL_FUNC void codes(uint, int c, uint base, thread float (&w)[chunk]) const thread {
      for (short j = 0; j < 2; ++j) split_nibbles(q.word(c % 2 * 2 + j), c / 2 != 0, base, 0, w + 4 * j);
    }
    METAL_FUNC float scale(uint k, int g) const thread { return scales.scale(k, g) * (g == 0 ? 1.0f : 0.0625f); }
    METAL_FUNC float offset(uint k, int g) const thread { return scales.offset(k, g); }
  };

  template <typename T> struct Fragments {
    FOUNDRY_CONST int groups = 2; // sub-blocks: the lower nibbles of 32 bytes and the upper ones
    FOUNDRY_CONST bool has_scale = true, has_offset = true;
    uint32_t q[2];
    ScalesOfK<true> scales;
    uint k;

    METAL_FUNC void read(threadgroup const uint32_t* row, uint, uint period, uint t) thread {
      for (short i = 0; i < 4; ++i) scales.head.q[i] = row[i];
      for (short h = 0; h < 2; ++h) q[h] = row[4 + 8 * period + 4 * h + t];
      k = 64 * period;
    }
    METAL_FUNC void codes(int g, int h, uint32_t base, thread metal::vec<T, 2> (&w)[2]) const thread {
      nibble_pairs(q[h], g == 1, 0, base, w);
    }
    static METAL_FUNC void pairs(metal::uint2 x, thread metal::vec<T, 2> (&of)[2]) { even_and_odd<T>(x, of); }
    METAL_FUNC float scale(int g) const thread { return scales.scale(k, g); }
    METAL_FUNC float offset(int g) const thread { return scales.offset(k, g); }
  };
#else
  static void pack(search::Weights w, block& b) {
    const search::Block<search::Whole<0, 15>, 8, 32, 0, 63, true> best(w);
    b = {};
    pack_scales(best, b);
    for (int s = 0; s < 8; ++s)
      best.values(w, s, [&](int n, int value) { search::put(b.qs, s / 2 * 32 + n % 32, value << s % 2 * 4); });
  }
#endif
};

FOUNDRY_FORMAT(Q4_K, q4_k, 12)

} // namespace foundry
