// IQ4_NL: Q4_0 whose codes stand for sixteen values at unequal distances.
#pragma once
#include "search.h"

namespace foundry {

struct block_iq4_nl {
  foundry_half d;
  uint16_t qs[8];
};
static_assert(sizeof(block_iq4_nl) == 18, "GGUF IQ4_NL");

FOUNDRY_CONST float iq4_values[16] = {-127.0f, -104.0f, -83.0f, -65.0f, -49.0f, -35.0f, -22.0f, -10.0f,
                                      1.0f,    13.0f,   25.0f,  38.0f,  53.0f,  69.0f,  89.0f,  113.0f};

// The values of eight codes: the nibbles at bit `shift` of the bytes of four words.
inline void iq4_chunk(FOUNDRY_DEVICE const uint16_t* words, int shift, FOUNDRY_THREAD float (&w)[chunk]) {
  for (short j = 0; j < 4; ++j) {
    const uint32_t q = uint32_t(words[j]) >> shift;
    w[2 * j] = iq4_values[q & 0xf];
    w[2 * j + 1] = iq4_values[q >> 8 & 0xf];
  }
}

#ifndef __METAL_VERSION__
struct IQ4Values { // a grid of search.h
  static constexpr float low = iq4_values[0], high = iq4_values[15];
  static search::Lanes nearest(search::Lanes v) {
    search::Lanes value = search::lanes(low);
    for (int i = 0; i < 15; ++i) {
      const float middle = (iq4_values[i] + iq4_values[i + 1]) / 2;
      value = v > middle ? search::lanes(iq4_values[i + 1]) : value;
    }
    return value;
  }
  static int code(int value) {
    return static_cast<int>(std::find(iq4_values, iq4_values + 16, static_cast<float>(value)) - iq4_values);
  }
};
#endif

struct IQ4_NL {
  using block = block_iq4_nl;
  FOUNDRY_CONST int block_size = 32;
  FOUNDRY_CONST int shared = 2;
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 0;
  FOUNDRY_SCALES(1, FOUNDRY_SCALE(d))

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int c, FOUNDRY_THREAD float (&w)[chunk]) {
    iq4_chunk(b.qs + i * 4, 4 * c, w);
    return widen(b.d);
  }

#ifdef __METAL_VERSION__
  template <bool> struct Codes {
    FOUNDRY_CONST int chunks = 2, groups = 1;
    FOUNDRY_CONST bool has_offset = false;
    Bytes<2, 2> q;
    foundry_half d;

    static METAL_FUNC uint first(uint i) { return i / 2 * 32 + i % 2 * 8; }
    static METAL_FUNC constexpr uint at(int c) { return c * 16; }
    static METAL_FUNC constexpr float ratio(int) { return 1.0f; }
    METAL_FUNC void read(device const block& b, uint k) thread {
      q.read(b.qs + k % 32 / 2);
      d = b.d;
    }
    METAL_FUNC void codes(uint, int c, uint, thread float (&w)[chunk]) const thread {
      for (short j = 0; j < chunk; ++j) w[j] = iq4_values[q.word(j / 4) >> (j % 4 * 8 + c * 4) & 0xf];
    }
    METAL_FUNC float scale(uint, int) const thread { return widen(d); }
    METAL_FUNC float offset(uint, int) const thread { return 0.0f; }
  };
#else
  static void pack(search::Weights w, block& b) {
    const search::Block<IQ4Values, 1, 32, 1, 1, false> best(w);
    b = {};
    b.d = best.d;
    best.values(w, 0, [&](int n, int value) { search::put(b.qs, n % 16, IQ4Values::code(value) << n / 16 * 4); });
  }
#endif
};

FOUNDRY_FORMAT(IQ4_NL, iq4_nl, 20)

} // namespace foundry
