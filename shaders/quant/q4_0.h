// Q4_0: 32 weights, an f16 scale and 4-bit codes around 8; byte j holds weight j low and weight j + 16 high.
#pragma once
#include "format.h"

namespace foundry {

struct block_q4_0 {
  foundry_half d;
  uint16_t qs[8]; // bytes 2j and 2j+1: blocks of 18 bytes are aligned to 2, so a word is the widest load
};
static_assert(sizeof(block_q4_0) == 18, "GGUF Q4_0");

struct Q4_0 {
  using block = block_q4_0;
  FOUNDRY_CONST int block_size = 32;
  FOUNDRY_CONST int shared = 2; // chunks 0 and 2 are the nibbles of the same bytes, 1 and 3 too
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int fragment_columns = 64;
  FOUNDRY_CONST int word = 4;
  FOUNDRY_CONST bool subnormal_codes = true;
  FOUNDRY_SCALES(0, FOUNDRY_SCALE(d))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int c, FOUNDRY_THREAD float (&w)[chunk]) {
    FOUNDRY_DEVICE const uint16_t* q = b.qs + i * 4;
    for (short j = 0; j < 4; ++j) {
      w[2 * j] = c == 0 ? code<0, 0xf, 0, 8>(q[j]) : code<4, 0xf, 0, 8>(q[j]);
      w[2 * j + 1] = c == 0 ? code<8, 0xf, 0, 8>(q[j]) : code<12, 0xf, 0, 8>(q[j]);
    }
    return widen(b.d);
  }

#ifdef __METAL_VERSION__
  template <bool Words> struct Codes {
    FOUNDRY_CONST int chunks = 4, groups = 1;
    FOUNDRY_CONST bool has_offset = false;
    UnalignedWords<4, Words, false> q;
    foundry_half d;

    static METAL_FUNC uint first(uint i) { return i * 32; }
    static METAL_FUNC constexpr uint at(int c) { return c * 8; }
    static METAL_FUNC constexpr float ratio(int c) { return c < 2 ? 1.0f : 0.0625f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      q.read(b.qs, k / 32 % 2 == 0);
      d = b.d;
    }
    METAL_FUNC void codes(uint k, int c, uint base, thread float (&w)[chunk]) const thread {
      const bool odd = k / 32 % 2 == 0;
      for (short j = 0; j < 2; ++j) split_nibbles(q.word(c % 2 * 2 + j, odd), c >= 2, base, 8, w + 4 * j);
    }
    METAL_FUNC float scale(uint, int) const thread { return widen(d); }
    METAL_FUNC float offset(uint, int) const thread { return 0.0f; }
  };

  template <typename T> struct Fragments {
    FOUNDRY_CONST int groups = 2; // blocks, of which the first begins at a word
    FOUNDRY_CONST bool has_scale = true, has_offset = false;
    uint32_t q[2];
    uint32_t d[2];

    METAL_FUNC void read(threadgroup const uint32_t* row, uint, uint period, uint t) thread {
      row += period * (2 * sizeof(block) / 4);
      q[0] = row[t] >> 16 | row[t + 1] << 16;
      q[1] = row[5 + t];
      d[0] = row[0] & 0xffff;
      d[1] = row[4] >> 16;
    }
    METAL_FUNC void codes(int g, int h, uint32_t base, thread metal::vec<T, 2> (&w)[2]) const thread {
      nibble_pairs(q[g], h == 1, 8, base, w);
    }
    static METAL_FUNC void pairs(metal::uint2 x, thread metal::vec<T, 2> (&of)[2]) { even_and_odd<T>(x, of); }
    METAL_FUNC float scale(int g) const thread { return half_of_bits(d[g]); }
    METAL_FUNC float offset(int) const thread { return 0.0f; }
  };
#else
  static void pack(const float* w, block& b) {
    float extreme = w[0]; // the first of the largest magnitude, with its sign: it gets code 0
    for (int j = 1; j < block_size; ++j)
      if (std::fabs(w[j]) > std::fabs(extreme)) extreme = w[j];
    const float d = extreme / -8.0f;
    const float inverse = reciprocal(d);
    b.d = narrow(d);
    const auto code = [&](int j) { // the product is rounded to f32 before the sum, as the reference does it
      const float scaled = static_cast<float>(static_cast<double>(w[j]) * inverse) + 8.5f;
      return static_cast<int>(std::fmin(std::fmax(scaled, 0.0f), 15.0f));
    };
    for (int j = 0; j < 8; ++j)
      b.qs[j] =
          static_cast<uint16_t>(code(2 * j) | code(2 * j + 16) << 4 | code(2 * j + 1) << 8 | code(2 * j + 17) << 12);
  }
#endif
};

FOUNDRY_FORMAT(Q4_0, q4_0, 2)

} // namespace foundry
