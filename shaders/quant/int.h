// Groups of weights with a scale and a whole number that stands for zero, as GPTQ and AWQ have them: (code - zero) *
// scale. Blocks of ours, as in affine.h; a file's longer group is several blocks.
#pragma once
#include "affine.h"

namespace foundry {

template <int Bits, int Size> struct block_int {
  foundry_half scale;
  uint16_t zero;
  uint32_t qs[Bits * Size / 32];
};

template <int Bits, int Size> struct Int {
  using block = block_int<Bits, Size>;
  FOUNDRY_CONST int block_size = Size;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 0;
  FOUNDRY_SCALES(0, FOUNDRY_SCALE(scale))
  static_assert(sizeof(block) == 4 + Bits * Size / 8, "no padding");

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    const float zero = float(b.zero);
    stream_codes<Bits>(b.qs, i, w);
    for (short j = 0; j < chunk; ++j) w[j] -= zero;
    return widen(b.scale);
  }

#ifdef __METAL_VERSION__
  struct Numbers {
    foundry_half d;
    uint16_t zero;
    METAL_FUNC void read(device const block& b) thread {
      d = b.scale;
      zero = b.zero;
    }
    METAL_FUNC float scale() const thread { return widen(d); }
    METAL_FUNC float offset() const thread { return -widen(d) * float(zero); }
  };
  template <bool> using Codes = StreamCodes<Bits, Size, Numbers>;
#else
  static void pack(const float* w, block& b) {
    float least = 0.0f, largest = 0.0f;
    for (int j = 0; j < Size; ++j) {
      least = std::fmin(least, w[j]);
      largest = std::fmax(largest, w[j]);
    }
    constexpr float top = (1 << Bits) - 1;
    b = block{};
    b.scale = narrow((largest - least) / top);
    const float inverse = reciprocal(widen(b.scale)), zero = std::nearbyint(std::fmin(-least * inverse, top));
    b.zero = static_cast<uint16_t>(zero);
    for (int j = 0; j < Size; ++j) {
      const float code = std::nearbyint(w[j] * inverse) + zero;
      pack_code<Bits>(b.qs, j, static_cast<uint32_t>(std::fmin(std::fmax(code, 0.0f), top)));
    }
  }
#endif
};

#define FOUNDRY_INT(bits, size)                                                                                        \
  using Int##bits##_##size = Int<bits, size>;                                                                          \
  FOUNDRY_FORMAT(Int##bits##_##size, int##bits##_g##size, -1)

#define FOUNDRY_INT_GROUPS(bits) FOUNDRY_INT(bits, 32) FOUNDRY_INT(bits, 64) FOUNDRY_INT(bits, 128)

FOUNDRY_INT_GROUPS(2)
FOUNDRY_INT_GROUPS(3)
FOUNDRY_INT_GROUPS(4)
FOUNDRY_INT_GROUPS(8)

} // namespace foundry
