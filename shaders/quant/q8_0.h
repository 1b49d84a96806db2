// Q8_0: 32 weights, an f16 scale and signed 8-bit codes.
#pragma once
#include "format.h"

namespace foundry {

struct block_q8_0 {
  foundry_half d;
  uint16_t qs[16]; // codes 2j and 2j+1: blocks of 34 bytes are aligned to 2, so a word is the widest load
};
static_assert(sizeof(block_q8_0) == 34, "GGUF Q8_0");

struct Q8_0 {
  using block = block_q8_0;
  FOUNDRY_CONST int block_size = 32;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int fragment_columns = 64;
  FOUNDRY_CONST int word = 4;
  FOUNDRY_CONST bool subnormal_codes = true;
  FOUNDRY_SCALES(0, FOUNDRY_SCALE(d))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    FOUNDRY_DEVICE const uint16_t* q = b.qs + 4 * i;
    for (short j = 0; j < 4; ++j) {
      w[2 * j] = code<0, 0xff, 0x80, 128>(q[j]);
      w[2 * j + 1] = code<8, 0xff, 0x80, 128>(q[j]);
    }
    return widen(b.d);
  }

#ifdef __METAL_VERSION__
  template <bool Words> struct Codes {
    FOUNDRY_CONST int chunks = 2, groups = 1;
    FOUNDRY_CONST bool has_offset = false;
    UnalignedWords<4, Words, false> q;
    foundry_half d;

    static METAL_FUNC uint first(uint i) { return i * 16; }
    static METAL_FUNC constexpr uint at(int c) { return c * 8; }
    static METAL_FUNC constexpr float ratio(int) { return 1.0f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      q.read(b.qs, k / 32 % 2 == 0, k % 32 / 2);
      d = b.d;
    }
    METAL_FUNC void codes(uint k, int c, uint base, thread float (&w)[chunk]) const thread {
      const bool odd = k / 32 % 2 == 0;
      for (short j = 0; j < 2; ++j)
        split_codes(q.word(2 * c + j, odd), 0x00ff00ffu, base, 128.0h, w + 4 * j, 0x80808080u);
    }
    METAL_FUNC float scale(uint, int) const thread { return widen(d); }
    METAL_FUNC float offset(uint, int) const thread { return 0.0f; }
  };

  template <typename T> struct Fragments {
    FOUNDRY_CONST int groups = 2; // blocks, of which the first begins at a word
    FOUNDRY_CONST bool has_scale = true, has_offset = false;
    uint32_t q[2][2];
    uint32_t d[2];

    METAL_FUNC void read(threadgroup const uint32_t* row, uint, uint period, uint t) thread {
      row += period * (2 * sizeof(block) / 4);
      for (short h = 0; h < 2; ++h) {
        q[0][h] = row[4 * h + t] >> 16 | row[4 * h + t + 1] << 16;
        q[1][h] = row[9 + 4 * h + t];
      }
      d[0] = row[0] & 0xffff;
      d[1] = row[8] >> 16;
    }
    METAL_FUNC void codes(int g, int h, uint32_t base, thread metal::vec<T, 2> (&w)[2]) const thread {
      byte_pairs(q[g][h], base, w);
    }
    static METAL_FUNC void pairs(metal::uint2 x, thread metal::vec<T, 2> (&of)[2]) { even_and_odd<T>(x, of); }
    METAL_FUNC float scale(int g) const thread { return half_of_bits(d[g]); }
    METAL_FUNC float offset(int) const thread { return 0.0f; }
  };
#else
  static void pack(const float* w, block& b) {
    float largest = 0.0f;
    for (int j = 0; j < block_size; ++j) largest = std::fmax(largest, std::fabs(w[j]));
    const float d = largest / 127.0f;
    const float inverse = reciprocal(d);
    b.d = narrow(d);
    for (int j = 0; j < block_size; ++j) {
      const auto code = static_cast<uint8_t>(static_cast<int>(std::round(w[j] * inverse)));
      const int shift = j % 2 * 8;
      b.qs[j / 2] = static_cast<uint16_t>(shift ? b.qs[j / 2] | code << shift : code);
    }
  }
#endif
};

FOUNDRY_FORMAT(Q8_0, q8_0, 8)

} // namespace foundry
