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

#ifdef __METAL_VERSION__
// The code at bit `shift` of `bits`, which must end before bit 23. one: the bits of 2^23, of which the compiler doesn't
// know what they are, as two constants would take two instructions.
template <int Bits> METAL_FUNC float code_at(uint32_t bits, int shift, uint32_t one) {
  const uint32_t mask = ((1u << Bits) - 1) << shift;
  return as_type<float>((bits & mask) | (one - (uint32_t(shift) << 23))) - float(1 << (23 - shift));
}

// 32 codes of such a stream on their way from memory, of blocks of `Size`, and the numbers of their group.
template <int Bits, int Size, typename Numbers> struct StreamCodes {
  FOUNDRY_CONST int chunks = 4, groups = 1;
  FOUNDRY_CONST bool has_offset = true;
  Bytes<Bits, 4> q;
  Numbers numbers;

  static METAL_FUNC uint first(uint i) { return i * 32; }
  static METAL_FUNC constexpr uint at(int c) { return c * 8; }
  static METAL_FUNC constexpr float ratio(int) { return 1.0f; }
  template <typename Block> METAL_FUNC void read(device const Block& b, uint k) thread {
    q.read(b.qs + k % Size / 32 * Bits);
    numbers.read(b);
  }
  METAL_FUNC float scale(uint, int) const thread { return numbers.scale(); }
  METAL_FUNC float offset(uint, int) const thread { return numbers.offset(); }
  METAL_FUNC void codes(uint, int c, uint base, thread float (&w)[chunk]) const thread {
    const uint32_t one = base ^ (0x64006400u ^ 0x4b000000u);
    for (short j = 0; j < chunk; ++j) {
      const short at = (c * chunk + j) * Bits, word = at / 32, shift = at % 32;
      // A code within the lower 23 bits may stay where it is: it is part of a mantissa.
      if (shift + Bits > 32) {
        w[j] = code_at<Bits>(q.q[word] >> shift | q.q[(word + 1) % Bits] << (32 - shift), 0, one);
      } else {
        const bool upper = shift + Bits > 23;
        w[j] = code_at<Bits>(upper ? q.q[word] >> 16 : q.q[word], upper ? shift - 16 : shift, one);
      }
    }
  }
};
#else
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
  FOUNDRY_CONST bool has_codes = true;
  FOUNDRY_CONST int word = 0;
  FOUNDRY_SCALES(0, FOUNDRY_SCALE(scale), FOUNDRY_SCALE(bias))
  static_assert(sizeof(block) == 2 * sizeof(T) + Bits * Size / 8, "no padding");

  static inline float unpack(FOUNDRY_DEVICE const block& b, short i, int, FOUNDRY_THREAD float (&w)[chunk]) {
    const float scale = widen(b.scale), bias = widen(b.bias);
    stream_codes<Bits>(b.qs, i, w);
    for (short j = 0; j < chunk; ++j) w[j] = w[j] * scale + bias;
    return 1.0f;
  }

#ifdef __METAL_VERSION__
  struct Numbers {
    T d, m;
    METAL_FUNC void read(device const block& b) thread {
      d = b.scale;
      m = b.bias;
    }
    METAL_FUNC float scale() const thread { return widen(d); }
    METAL_FUNC float offset() const thread { return widen(m); }
  };
  template <bool> using Codes = StreamCodes<Bits, Size, Numbers>;
#else
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
