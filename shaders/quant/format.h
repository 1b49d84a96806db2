// What a weight format header builds on. A format is one header: the layout of its block, and a policy type that the
// kernels and the host's packer share. It ends with FOUNDRY_FORMAT, and formats.h includes it: nothing else is to add.
//
//   struct Q {
//     using block = ...;                              // as it lies in the file, checked by a static_assert on its size
//     FOUNDRY_CONST int block_size = ...;             // weights in a block, a multiple of `chunk`
//     FOUNDRY_CONST int shared = ...;                 // chunks made of the same bytes: i, i + block_size/chunk/shared,
//     ..
//     // Chunk i + c * block_size/chunk/shared of the block, 0 <= c < shared: its weights are the returned scale times
//     // w[0..]. A format with an offset returns finished weights and 1. `w` may be any f32; kernels multiply in f32.
//     static float unpack(FOUNDRY_DEVICE const block& b, short i, int c, FOUNDRY_THREAD float (&w)[chunk]);
//     FOUNDRY_CONST bool has_codes = ...;             // whether it has what follows; else kernels use `unpack` alone
//     // Kernels only. The same for c = 0 .. shared - 1 from the eight bytes of codes that chunk i lies in, `b.qs + 4 *
//     // i`: a weight is the block's scale `d` times w[j] * ratio(c). base: a pair of halves of 1024 (see split_codes).
//     // by_words: whether reading in four bytes is worth it where rows are aligned to them.
//     static void codes(uint2 bytes, uint base, int c, thread float (&w)[chunk]);
//     static constexpr float ratio(int c); FOUNDRY_CONST bool by_words = ...;
//     // Host only, and only if weights can be packed as this: byte for byte as the format's reference encoder.
//     static void pack(const float* w, block& b);
//   };
#pragma once
#include "../portable.h"

#ifdef __METAL_VERSION__
#define FOUNDRY_DEVICE device
#define FOUNDRY_THREAD thread
typedef bfloat foundry_bfloat;
#else
#include <cmath>
#define FOUNDRY_DEVICE
#define FOUNDRY_THREAD
struct foundry_bfloat {
  uint16_t bits;
};
#endif

// FOUNDRY_FORMAT(policy, name, GGUF type id or -1): the host table defines it before it includes formats.h; kernels do
// not.
#ifndef FOUNDRY_FORMAT
#define FOUNDRY_FORMAT(policy, name, gguf_type)
#endif

namespace foundry {

// Weights that a lane unpacks at once. Eight halves are one 16-byte load, and no GGUF format has a scale for fewer.
FOUNDRY_CONST int chunk = 8;

#ifdef __METAL_VERSION__
METAL_FUNC float widen(foundry_half h) { return float(h); }
METAL_FUNC float widen(foundry_bfloat b) { return float(b); }
METAL_FUNC float widen(float f) { return f; }
METAL_FUNC float float_of_bits(uint32_t bits) { return as_type<float>(bits); }
METAL_FUNC float half_of_bits(uint32_t bits) { return float(as_type<half>(ushort(bits))); }
#else
inline float float_of_bits(uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

inline float widen(foundry_half h) {
  _Float16 value;
  __builtin_memcpy(&value, &h, sizeof value);
  return static_cast<float>(value);
}

inline float widen(foundry_bfloat b) { return float_of_bits(uint32_t{b.bits} << 16); }
inline float widen(float f) { return f; }
inline float half_of_bits(uint32_t bits) { return widen(foundry_half{static_cast<uint16_t>(bits)}); }

inline foundry_half narrow(float f) { // to nearest, ties to even
  const _Float16 value = static_cast<_Float16>(f);
  foundry_half h;
  __builtin_memcpy(&h, &value, sizeof h);
  return h;
}

// The same for the type that a format's scale may have.
inline void narrow_to(float f, foundry_half& to) { to = narrow(f); }
inline void narrow_to(float f, float& to) { to = f; }
inline void narrow_to(float f, foundry_bfloat& to) {
  uint32_t bits;
  __builtin_memcpy(&bits, &f, sizeof bits);
  if (std::isfinite(f)) bits += 0x7fff + (bits >> 16 & 1);
  to.bits = static_cast<uint16_t>(bits >> 16);
}

// 1/d for a block's scale; 0 for a scale so small that the block decodes to zeros anyway.
inline float reciprocal(float d) { return std::isfinite(1.0f / d) ? 1.0f / d : 0.0f; }
#endif

// The code at bit `Shift` of `bits`, less `Zero`, exactly and without a conversion, of which GPUs do few at a time: in
// the mantissa of 2^(23 - Shift) the code's bits have the value that they have alone. `Flip` inverts bits of the code
// first (0x80 turns two's complement into a code around 128).
template <int Shift, uint32_t Mask, uint32_t Flip, int Zero> inline float code(uint32_t bits) {
  constexpr uint32_t base = uint32_t(127 + 23 - Shift) << 23;
  return float_of_bits((bits & (Mask << Shift)) ^ (base | Flip << Shift)) - float((1 << (23 - Shift)) + Zero);
}

// The codes in the low bits of a word's two bytes, less `Zero`. Where there is an offset, finished weights. A loop that
// goes from a word to its weights stays in registers; one array after the other, a CPU waits for its own stores.
template <uint32_t Mask, int Zero> inline void two_codes(uint32_t q, FOUNDRY_THREAD float* w) {
  w[0] = code<0, Mask, 0, Zero>(q);
  w[1] = code<8, Mask, 0, Zero>(q);
}

template <uint32_t Mask> inline void two_weights(uint32_t q, float d, float offset, FOUNDRY_THREAD float* w) {
  w[0] = d * code<0, Mask, 0, 0>(q) + offset;
  w[1] = d * code<8, Mask, 0, 0>(q) + offset;
}

#ifdef __METAL_VERSION__
// The codes of four bytes in their order, less `zero`: bytes 0 and 2, then 1 and 3 are masked as pairs. In the mantissa
// of 1024 they are halves without a conversion, and the difference is exact. `base` is two halves of 1024, with the
// bits set that are to be inverted in the codes.
METAL_FUNC void split_codes(uint32_t bytes, uint32_t mask, uint32_t base, half zero, thread float* w) {
  const metal::half2 offset = metal::half2(1024.0h + zero);
  const metal::half2 even = as_type<metal::half2>((bytes & mask) ^ base) - offset;
  const metal::half2 odd = as_type<metal::half2>((bytes >> 8 & mask) ^ base) - offset;
  w[0] = float(even.x);
  w[1] = float(odd.x);
  w[2] = float(even.y);
  w[3] = float(odd.y);
}

// Eight bytes of a block's codes and its scale on their way from memory: those of the unit at element k of a row.
// Words: rows are aligned to four bytes, blocks to two, and two blocks make words; so blocks of an odd number, and the
// codes of the others, begin within a word.
template <typename Q, bool Words> struct Codes {
  uint32_t q[4];
  foundry_half d;
  METAL_FUNC void read(device const typename Q::block* row, uint k) thread {
    device const typename Q::block& b = row[k / Q::block_size];
    for (short j = 0; j < 4; ++j) q[j] = b.qs[k % Q::block_size / chunk * 4 + j];
    d = b.d;
  }
  METAL_FUNC metal::uint2 bytes(uint) const thread {
    return metal::uint2(as_type<uint32_t>(metal::ushort2(ushort(q[0]), ushort(q[1]))),
                        as_type<uint32_t>(metal::ushort2(ushort(q[2]), ushort(q[3]))));
  }
};

template <typename Q> struct Codes<Q, true> {
  uint32_t q[3];
  foundry_half d;
  METAL_FUNC void read(device const typename Q::block* row, uint k) thread {
    const uint block = k / Q::block_size;
    device const uint32_t* words = (device const uint32_t*)(row[block].qs - 1 - block % 2);
    for (short j = 0; j < 3; ++j) q[j] = words[k % Q::block_size / chunk * 2 + j];
    d = row[block].d;
  }
  METAL_FUNC metal::uint2 bytes(uint block) const thread {
    return block % 2 ? metal::uint2(q[1], q[2]) : metal::uint2(q[0] >> 16 | q[1] << 16, q[1] >> 16 | q[2] << 16);
  }
};
#endif

} // namespace foundry
