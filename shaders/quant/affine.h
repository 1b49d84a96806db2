// Groups of weights with a scale and an offset of their own, as mlx has them: code * scale + bias. The files keep
// codes, scales and biases in three tensors; a block of ours is a group's share of each, and its codes are the file's
// words: a stream of bits, the first code in the lowest.
#pragma once
#include "format.h"

namespace foundry {

// The codes of chunk i of `N` words, as numbers from 0 on.
template <int Bits, int N>
inline void stream_codes(FOUNDRY_DEVICE const uint32_t (&words)[N], short i, FOUNDRY_THREAD float (&w)[chunk]) {
  constexpr uint32_t mask = (1u << Bits) - 1;
  const short first = short(i * Bits / 4), next = first + 1 < N ? short(first + 1) : first;
  const uint32_t shift = uint32_t(i * Bits % 4 * 8);
  uint32_t low = words[first], high = Bits == 2 || Bits == 4 ? 0 : words[next];
  if (Bits % 4 != 0) {
    low = low >> shift | high << 1 << (31 - shift);
    high >>= shift;
  }
  for (short j = 0; j < chunk; ++j) {
    const int at = j * Bits;
    const uint32_t code = at + Bits <= 32 ? low >> at : at >= 32 ? high >> (at - 32) : low >> at | high << (32 - at);
    w[j] = float_of_bits(0x4b000000u | (code & mask)) - 8388608.0f; // 2^23: exact, and without a conversion
  }
}

#ifndef __METAL_VERSION__
template <int Bits, int N> void pack_code(uint32_t (&words)[N], int j, uint32_t code) {
  const int at = j * Bits % 32, word = j * Bits / 32;
  words[word] |= code << at;
  if (at + Bits > 32) words[word + 1] |= code >> (32 - at);
}
#endif

template <int Bits, int Size, typename T> struct block_affine {
  T scale, bias;
  uint32_t qs[Bits * Size / 32];
};

template <int Bits, int Size, typename T> struct Affine {
  using block = block_affine<Bits, Size, T>;
  FOUNDRY_CONST int block_size = Size;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = false;
  static_assert(sizeof(block) == 2 * sizeof(T) + Bits * Size / 8, "no padding");

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    const float scale = widen(b.scale), bias = widen(b.bias);
    stream_codes<Bits>(b.qs, i, w);
    for (short j = 0; j < chunk; ++j) w[j] = w[j] * scale + bias;
    return 1.0f;
  }

#ifndef __METAL_VERSION__
  // The end of the range that is farther from zero is met exactly, by a scale that may be negative, and so is zero.
  static void pack(const float* w, block& b) {
    float least = w[0], largest = w[0];
    for (int j = 1; j < Size; ++j) {
      least = std::fmin(least, w[j]);
      largest = std::fmax(largest, w[j]);
    }
    constexpr float top = (1 << Bits) - 1;
    const bool below = std::fabs(least) > std::fabs(largest);
    const float edge = below ? least : largest, step = std::fmax((largest - least) / top, 1e-7f);
    float scale = below ? step : -step, bias = 0.0f;
    if (const float steps = std::nearbyint(edge / scale); steps != 0.0f) {
      scale = edge / steps;
      bias = edge;
    }
    b = block{};
    for (int j = 0; j < Size; ++j) {
      const float code = std::nearbyint((w[j] - bias) / scale);
      pack_code<Bits>(b.qs, j, static_cast<uint32_t>(std::fmin(std::fmax(code, 0.0f), top)));
    }
    narrow_to(scale, b.scale);
    narrow_to(bias, b.bias);
  }
#endif
};

#define FOUNDRY_AFFINE(bits, size)                                                                                     \
  using Affine##bits##_##size##_F16 = Affine<bits, size, foundry_half>;                                                \
  using Affine##bits##_##size##_BF16 = Affine<bits, size, foundry_bfloat>;                                             \
  using Affine##bits##_##size##_F32 = Affine<bits, size, float>;                                                       \
  FOUNDRY_FORMAT(Affine##bits##_##size##_F16, affine##bits##_g##size##_f16, -1)                                        \
  FOUNDRY_FORMAT(Affine##bits##_##size##_BF16, affine##bits##_g##size##_bf16, -1)                                      \
  FOUNDRY_FORMAT(Affine##bits##_##size##_F32, affine##bits##_g##size##_f32, -1)

#define FOUNDRY_AFFINE_GROUPS(bits) FOUNDRY_AFFINE(bits, 32) FOUNDRY_AFFINE(bits, 64) FOUNDRY_AFFINE(bits, 128)

FOUNDRY_AFFINE_GROUPS(2)
FOUNDRY_AFFINE_GROUPS(3)
FOUNDRY_AFFINE_GROUPS(4)
FOUNDRY_AFFINE_GROUPS(5)
FOUNDRY_AFFINE_GROUPS(6)
FOUNDRY_AFFINE_GROUPS(8)

} // namespace foundry
