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
//     FOUNDRY_CONST int word = ...;                   // bytes to which rows must be aligned for Codes<true>; 0: none
//     FOUNDRY_CONST bool subnormal_codes = true;      // whether `base` may be 0; left out: it may not
//     // Kernels only: a lane's share of a row between memory and its products. Such a unit begins at element k of an
//     // even block and the next, has `chunks` chunks in `groups` equal groups, and a weight of chunk c, of group g, is
//     // scale(k, g) * ratio(c) * w[j] + offset(k, g). All units of a lane have one k. Nothing is computed in `read`,
//     // so that loads are in flight together; b is the block that k lies in.
//     template <bool Words> struct Codes {
//       FOUNDRY_CONST int chunks = ..., groups = ...;
//       FOUNDRY_CONST bool has_offset = ...;
//       static uint first(uint i);                    // where unit i of a row begins
//       static constexpr uint at(int c);              // where chunk c begins after k
//       static constexpr float ratio(int c);
//       void read(device const block& b, uint k);
//       // base: two halves of 1024, or 0: then w are codes over 2^24 (split_codes).
//       void codes(uint k, int c, uint base, thread float (&w)[chunk]) const;
//       float scale(uint k, int g) const;
//       float offset(uint k, int g) const;
//     };
//     FOUNDRY_CONST int fragment_columns = ...;       // as follows; left out: it has no Fragments
//     // Kernels only: what a lane of a simdgroup holds of a row for products of matrices of 16 bits: of each 16, the
//     // four from 4 * t on, in two pairs. `row`: the bytes of a step (linear/linear.h) in threadgroup memory, of which
//     // `period` is the index of `fragment_columns` in `groups` equal groups. `past`: bytes before them, of blocks of
//     an
//     // odd number of bytes, which may begin anywhere in a word.
//     template <typename T> struct Fragments {
//       FOUNDRY_CONST int groups = ...;
//       FOUNDRY_CONST bool has_scale = ..., has_offset = ...;
//       void read(threadgroup const uint32_t* row, uint past, uint period, uint t);
//       static void pairs(metal::uint2 x, thread metal::vec<T, 2> (&of)[2]); // in the order of columns that codes have
//       // Of the 16 columns h of group g, exactly; `base` as code_base has it.
//       void codes(int g, int h, uint32_t base, thread metal::vec<T, 2> (&w)[2]) const;
//       float scale(int g) const;
//       float offset(int g) const;
//     };
//     // Host only: the block's fields that are scales or offsets, in which NaN and infinities are looked for. `whole`:
//     // a value of theirs at which all weights are whole numbers, for tests; 0 if packing holds such numbers exactly.
//     FOUNDRY_SCALES(whole, FOUNDRY_SCALE(field) or FOUNDRY_BYTES(field, type), ...)
//     // Host only, and only if weights can be packed as this: byte for byte as the format's reference encoder.
//     static void pack(const float* w, block& b);
//   };
#pragma once
#include "common/portable.h"

#ifdef __METAL_VERSION__
#define FOUNDRY_DEVICE device
#define FOUNDRY_THREAD thread
typedef bfloat foundry_bfloat;
#else
#include <cmath>
#include <cstddef>
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

#ifdef __METAL_VERSION__
#define FOUNDRY_SCALES(whole, ...)
#else
namespace foundry {

// How a scale is written, by the type of its field; a half may lie in the upper nibbles of four words. In bytes:
// ue4m3, and e8m0_n, a power of two for elements of up to n.
template <typename T> inline constexpr const char* scale_type = "nibbles";
template <> inline constexpr const char* scale_type<foundry_half> = "f16";
template <> inline constexpr const char* scale_type<foundry_bfloat> = "bf16";
template <> inline constexpr const char* scale_type<float> = "f32";

struct Scales { // `count` of them from a byte of the block on
  int64_t offset, count;
  const char* type;
};

} // namespace foundry

#define FOUNDRY_FIELD(field) static_cast<block*>(nullptr)->field
#define FOUNDRY_SCALE(field)                                                                                           \
  Scales { offsetof(block, field), 1, scale_type<decltype(FOUNDRY_FIELD(field))> }
#define FOUNDRY_BYTES(field, type)                                                                                     \
  Scales { offsetof(block, field), sizeof(FOUNDRY_FIELD(field)), #type }
#define FOUNDRY_SCALES(number, ...)                                                                                    \
  static constexpr int whole = number;                                                                                 \
  static constexpr Scales fields[] = {__VA_ARGS__};
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
// Of four bytes the first and the third, then the others, in their order.
METAL_FUNC void interleave(metal::half2 even, metal::half2 odd, thread float* w) {
  w[0] = float(even.x);
  w[1] = float(odd.x);
  w[2] = float(even.y);
  w[3] = float(odd.y);
}

// The codes of four bytes in their order, less `zero`: bytes 0 and 2, then 1 and 3 are masked as pairs. In the mantissa
// of 1024 they are halves without a conversion, and the difference is exact. `base` is two halves of 1024, or 0: alone
// they are subnormal halves of which 2^24 make a code, where GPUs keep such. `flip`: bits to invert in the bytes.
METAL_FUNC void split_codes(uint32_t bytes, uint32_t mask, uint32_t base, half zero, thread float* w,
                            uint32_t flip = 0) {
  const bool subnormal = base == 0;
  const metal::half2 offset = metal::half2(subnormal ? as_type<half>(ushort(zero)) : 1024.0h + zero);
  bytes ^= subnormal ? flip : 0;
  base ^= subnormal ? 0 : flip & mask;
  interleave(as_type<metal::half2>((bytes & mask) ^ base) - offset,
             as_type<metal::half2>((bytes >> 8 & mask) ^ base) - offset, w);
}

// The same of the lower or the upper nibbles of four bytes. The upper ones stay where they are: 16 times the codes.
METAL_FUNC void split_nibbles(uint32_t bytes, bool upper, uint32_t base, int zero, thread float* w) {
  split_codes(bytes, upper ? 0x00f000f0u : 0x000f000fu, base, half(upper ? 16 * zero : zero), w);
}

// Of four elements the first and the third, and the others.
template <typename T> METAL_FUNC void even_and_odd(metal::uint2 four, thread metal::vec<T, 2> (&pairs)[2]) {
  const metal::ushort2 low = as_type<metal::ushort2>(four.x), high = as_type<metal::ushort2>(four.y);
  pairs[0] = as_type<metal::vec<T, 2>>(as_type<uint32_t>(metal::ushort2(low.x, high.x)));
  pairs[1] = as_type<metal::vec<T, 2>>(as_type<uint32_t>(metal::ushort2(low.y, high.y)));
}

// Two numbers in whose mantissa a code's bits have the value that they have alone: `base` of what follows. `zero` is
// not known to be 0: as a constant they would cost an instruction beside that of the mask.
template <typename T> METAL_FUNC uint32_t code_base(uint32_t zero);
template <> METAL_FUNC uint32_t code_base<half>(uint32_t zero) { return 0x64006400u | zero; }   // 1024
template <> METAL_FUNC uint32_t code_base<bfloat>(uint32_t zero) { return 0x43004300u | zero; } // 128

// The lower or the upper nibbles of four bytes, less `zero`: of bytes 0 and 2, then of 1 and 3.
METAL_FUNC void nibble_pairs(uint32_t bytes, bool upper, int zero, uint32_t base, thread metal::half2 (&w)[2]) {
  for (short i = 0; i < 2; ++i) {
    const metal::half2 code = as_type<metal::half2>((bytes >> 8 * i & (upper ? 0x00f000f0u : 0x000f000fu)) ^ base);
    w[i] = upper ? metal::fma(code, metal::half2(0.0625h), metal::half2(half(-64 - zero)))
                 : code - metal::half2(half(1024 + zero));
  }
}
METAL_FUNC void nibble_pairs(uint32_t bytes, bool upper, int zero, uint32_t base,
                             thread metal::vec<bfloat, 2> (&w)[2]) {
  for (short i = 0; i < 2; ++i)
    w[i] = as_type<metal::vec<bfloat, 2>>((bytes >> (8 * i + (upper ? 4 : 0)) & 0x000f000fu) ^ base) -
           metal::vec<bfloat, 2>(bfloat(float(128 + zero)));
}

// The same of four signed bytes.
METAL_FUNC void byte_pairs(uint32_t bytes, uint32_t base, thread metal::half2 (&w)[2]) {
  const uint32_t around_128 = base ^ 0x00800080u;
  for (short i = 0; i < 2; ++i)
    w[i] = as_type<metal::half2>((bytes >> 8 * i & 0x00ff00ffu) ^ around_128) - metal::half2(1152.0h);
}
METAL_FUNC void byte_pairs(uint32_t bytes, uint32_t base, thread metal::vec<bfloat, 2> (&w)[2]) {
  metal::half2 codes[2];
  byte_pairs(bytes, base ^ 0x27002700u, codes); // of halves
  for (short i = 0; i < 2; ++i) w[i] = metal::vec<bfloat, 2>(bfloat(float(codes[i].x)), bfloat(float(codes[i].y)));
}

// 4 * N bytes on their way from memory: `Align` (2, 4 or 16) is what their address is a multiple of.
template <int N, int Align> struct Bytes {
  FOUNDRY_CONST int size = Align == 2 ? 2 * N : N;
  uint32_t q[size];
  METAL_FUNC void read(device const void* from, bool = false) thread {
    for (short j = 0; j < size / 4 && Align == 16; ++j) {
      const metal::uint4 words = ((device const metal::uint4*)from)[j];
      for (short i = 0; i < 4; ++i) q[4 * j + i] = words[i];
    }
    for (short j = 0; j < size && Align == 4; ++j) q[j] = ((device const uint32_t*)from)[j];
    for (short j = 0; j < size && Align == 2; ++j) q[j] = ((device const uint16_t*)from)[j];
  }
  METAL_FUNC uint32_t word(int j) const thread {
    if (Align != 2) return q[j];
    return as_type<uint32_t>(metal::ushort2(ushort(q[2 * j % size]), ushort(q[(2 * j + 1) % size])));
  }
  METAL_FUNC metal::uint2 halves(int j, bool) const thread { return {word(j), word(j) >> 8}; } // as OddBytes have them
};

// N numbers of 16 bits, from element at.x on. Apple's GPUs load four at once from wherever they lie, and scale an index
// of 32 bits on the way. A prelude may overload this for its platform.
template <int N, typename At> METAL_FUNC void read_halves(device const uint16_t* from, At at, thread uint32_t (&q)[N]) {
  for (short j = 0; j < N / 4; ++j) {
    const metal::ushort4 four = *(device const metal::packed_ushort4*)(from + (at.x + 4 * j));
    for (short i = 0; i < 4; ++i) q[4 * j + i] = four[i];
  }
  for (short j = N / 4 * 4; j < N; ++j) q[j] = from[at.x + j];
}

// The word that begins 0, 16 or 32 bits behind the first bit of two. A prelude may overload this for its platform.
template <typename V> METAL_FUNC uint32_t word_behind(V words, uint bits) {
  return bits == 0 ? words.x : bits == 32 ? words.y : words.x >> 16 | words.y << 16;
}

// Where a lane's first unit begins, and the blocks between its units: a compiler would compute them again for each row.
// A prelude may overload both functions for its platform.
template <typename V> METAL_FUNC V kept(V x, uint) { return x; }
template <typename Block, typename V> METAL_FUNC device const Block* next_unit(device const Block* at, V x) {
  return at + x.y;
}

// The same in a row that is aligned to four bytes if Words, in blocks of an odd number of two bytes: with `odd` the
// bytes begin within a word. Words are read whole, from the one before the bytes on, or, if After, to the one after.
template <int N, bool Words, bool After> struct UnalignedWords {
  FOUNDRY_CONST int size = Words ? N + 1 : 2 * N;
  uint32_t q[size];
  METAL_FUNC void read(device const uint16_t* from, bool odd, uint first = 0) thread {
    device const uint32_t* words = (device const uint32_t*)(from + first - (odd ? 1 : After ? 0 : 2));
    for (short j = 0; j < size && Words; ++j) q[j] = words[j];
    if (!Words) read_halves(from, metal::uint2(first), q);
  }
  METAL_FUNC uint32_t word(int j, bool odd) const thread {
    if (Words) return word_behind(metal::uint2(q[j], q[j + 1]), odd ? 16 : After ? 0 : 32);
    return as_type<uint32_t>(metal::ushort2(ushort(q[2 * j % size]), ushort(q[(2 * j + 1) % size])));
  }
};

// 4 * N bytes from an odd address if `odd`, in a row that is aligned to two bytes if Pairs: they are read as pairs
// then, the first with the byte before, the last with the byte behind.
template <int N, bool Pairs> struct OddBytes {
  FOUNDRY_CONST int size = Pairs ? 2 * N + 1 : 4 * N;
  uint16_t q[size];
  METAL_FUNC void read(device const uint8_t* from, bool odd) thread {
    device const uint16_t* pairs = (device const uint16_t*)(from - (odd ? 1 : 0));
    for (short j = 0; j < size - Pairs; ++j) q[j] = Pairs ? pairs[j] : uint16_t(from[j]);
    if (Pairs) q[size - 1] = odd ? pairs[size - 1] : uint16_t(0);
  }
  METAL_FUNC uint32_t two(int first, int second) const thread {
    return as_type<uint32_t>(metal::ushort2(q[first % size], q[second % size]));
  }
  // Of bytes 4j .. 4j + 3: the first and the third in the low bytes of two halves, then the others. What is above is
  // anything.
  METAL_FUNC metal::uint2 halves(int j, bool odd) const thread {
    if (!Pairs) return {two(4 * j, 4 * j + 2), two(4 * j + 1, 4 * j + 3)};
    const uint32_t word = two(2 * j, 2 * j + 1);
    const uint32_t bytes = odd ? word >> 8 | uint32_t(q[(2 * j + 2) % size]) << 24 : word;
    return {bytes, bytes >> 8};
  }
};

// OddBytes, or what a platform has in their place: its prelude overloads the function.
template <int N, bool Pairs, typename At>
METAL_FUNC OddBytes<N, Pairs> read_odd_bytes(device const uint8_t* from, bool odd, At) {
  OddBytes<N, Pairs> bytes;
  bytes.read(from, odd);
  return bytes;
}
template <int N, bool Pairs, typename At = metal::uint2> struct AnyBytes {
  decltype(read_odd_bytes<N, Pairs>((device const uint8_t*)0, true, At())) bytes;
  METAL_FUNC void read(device const uint8_t* from, bool odd) thread {
    bytes = read_odd_bytes<N, Pairs>(from, odd, At());
  }
  METAL_FUNC metal::uint2 halves(int j, bool odd) const thread { return bytes.halves(j, odd); }
};

// Two floats of 4 bits (E2M1), in bits 0 to 3 of both halves of `bits`, or 4 to 7, over 2^14: as halves their bits are
// those of a half. 0.5 is a subnormal one.
METAL_FUNC metal::half2 halves_of_e2m1(uint32_t bits, bool upper) {
  const uint32_t magnitude = bits << (upper ? 5 : 9) & 0x0e000e00u, sign = bits << (upper ? 8 : 12) & 0x80008000u;
  return as_type<metal::half2>(magnitude | sign);
}

// The same of four bytes' lower or upper nibbles: of bytes 0 and 2, then of 1 and 3.
METAL_FUNC void e2m1_pairs(uint32_t bytes, bool upper, thread metal::half2 (&w)[2]) {
  for (short i = 0; i < 2; ++i) w[i] = halves_of_e2m1(bytes >> 8 * i, upper);
}
METAL_FUNC void e2m1_pairs(uint32_t bytes, bool upper, thread metal::vec<bfloat, 2> (&w)[2]) {
  metal::half2 halves[2];
  e2m1_pairs(bytes, upper, halves);
  for (short i = 0; i < 2; ++i) w[i] = metal::vec<bfloat, 2>(bfloat(float(halves[i].x)), bfloat(float(halves[i].y)));
}

// Two floats of 8 bits (E4M3) over 2^8, those from 2^-9 to 2^-6 subnormal.
METAL_FUNC metal::half2 halves_of_e4m3(uint32_t bits) {
  return as_type<metal::half2>((bits << 7 & 0x3f803f80u) | (bits << 8 & 0x80008000u));
}
#endif

} // namespace foundry
