// How keys and values lie in a cache, for kernels that read or write them. Host and GPU share the sizes.
//
// A row is a head's part of one token. Dense: its elements. Packed, for `columns` of them: a code for each, then an f16
// scale for each 32 (the last one may have fewer), then up to a multiple of 4 bytes. Numbers are as in GGUF's blocks of
// that name, scale * (code - zero), but codes lie together, where they can be read in words.
// In a byte are the lower ones first; zero is the middle of the codes.
#pragma once
#include "attention/kv_formats.h"
#include "quant/format.h"

namespace foundry {

FOUNDRY_CONST int kv_block = 32;                 // columns of a scale
FOUNDRY_CONST uint32_t kv_two_1024 = 0x64006400; // two halves of 1024, with which matrix products unpack codes
FOUNDRY_CONST int kv_page_least = 16;            // tokens of a page are a power of two from here

inline constexpr uint32_t packed_row_bytes(uint32_t columns, uint32_t bits) {
  return (columns * bits / 8 + (columns + kv_block - 1) / kv_block * 2 + 3) / 4 * 4;
}

} // namespace foundry

#ifdef __METAL_VERSION__
#include "common/vec.h"

namespace foundry {

// A policy names the unit of strides and reads N neighbouring elements as floats, or, of one block, as codes that its
// scale turns into them; `wide`: rows are aligned to 16 bytes.
template <typename E> struct DenseKv {
  using unit = E;
  FOUNDRY_CONST bool packed = false;
  template <int N> static METAL_FUNC void load(device const E* row, uint column, bool wide, thread float (&v)[N]) {
    if (wide)
      load_wide(row + column, v);
    else
      load_narrow(row + column, v);
  }
  template <int N>
  static METAL_FUNC float load_codes(device const E* row, uint column, bool wide, thread float (&v)[N]) {
    load(row, column, wide, v);
    return 1.0f;
  }

  // For products of matrices: the type of factors, and 2 * N elements as pairs, of which element e of pair f is number
  // paired(f, e). `base`: kv_two_1024.
  template <typename T> using factor = E;
  static constexpr int paired(int f, int e) { return 2 * f + e; }
  template <int N>
  static METAL_FUNC void load_pairs(device const E* row, uint column, bool wide, uint,
                                    thread metal::vec<E, 2> (&pairs)[N]) {
    static_assert(N == 2 || N == 4, "8 or 16 bytes");
    if (wide && N == 4) {
      const metal::uint4 raw = *(device const metal::uint4*)(row + column);
      for (int f = 0; f < 4; ++f) pairs[f % N] = as_type<metal::vec<E, 2>>(raw[f]);
    } else if (wide) {
      const metal::uint2 raw = *(device const metal::uint2*)(row + column);
      for (int f = 0; f < 2; ++f) pairs[f] = as_type<metal::vec<E, 2>>(raw[f]);
    } else {
      for (int f = 0; f < N; ++f) pairs[f] = metal::vec<E, 2>(row[column + 2 * f], row[column + 2 * f + 1]);
    }
  }
  template <int N> static METAL_FUNC void load_scales(device const E*, thread float (&)[N]) {}
};

// How codes of so many bits are unpacked and packed: `read` N of them, 4 or 8, less zero, in words or, if Wide, in
// pairs of words; for products of matrices element e of pair f, whose number is paired(f, e), which is exact in 16
// bits: in the mantissa of 1024, or of 128 in bfloat; `write` code i of a row, where `next` is the code after it.
template <int Bits> struct KvCodes;

template <> struct KvCodes<8> {
  static METAL_FUNC void four(uint q, thread float* v) {
    const uint high = q >> 16;
    v[0] = code<0, 0xff, 0, 128>(q);
    v[1] = code<8, 0xff, 0, 128>(q);
    v[2] = code<0, 0xff, 0, 128>(high);
    v[3] = code<8, 0xff, 0, 128>(high);
  }
  template <bool Wide, int N> static METAL_FUNC void read(device const uchar* codes, thread float (&v)[N]) {
    if (N == 8 && Wide) {
      const metal::uint2 q = *(device const metal::uint2*)codes;
      four(q.x, v);
      four(q.y, v + 4 % N);
    } else {
      for (int i = 0; i < N; i += 4) four(((device const uint*)codes)[i / 4], v + i);
    }
  }

  static constexpr int paired(int f, int e) { return f / 2 * 4 + f % 2 + 2 * e; }
  static METAL_FUNC uint pair_bits(metal::uint2 q, int f) { return q[f / 2] >> (f % 2 * 8); }
  static METAL_FUNC void pair(uint two, uint base, thread metal::half2& codes) {
    codes = as_type<metal::half2>((two & 0x00ff00ffu) | base) - metal::half2(half(1152.0f));
  }
  static METAL_FUNC void pair(uint two, uint base, thread metal::vec<bfloat, 2>& codes) {
    typedef metal::vec<bfloat, 2> pair_type;
    base -= kv_two_1024 - 0x43004300u; // eight bits are one too many: the upper one is in what is taken off
    codes = as_type<pair_type>((two & 0x007f007fu) | base) - as_type<pair_type>((~two & 0x00800080u) | base);
  }

  static METAL_FUNC void write(device uchar* row, uint i, uint code, uint) { row[i] = uchar(code); }
};

template <> struct KvCodes<4> {
  static METAL_FUNC void four(uint q, thread float* v) {
    v[0] = code<0, 0xf, 0, 8>(q);
    v[1] = code<4, 0xf, 0, 8>(q);
    v[2] = code<8, 0xf, 0, 8>(q);
    v[3] = code<12, 0xf, 0, 8>(q);
  }
  template <bool Wide, int N> static METAL_FUNC void read(device const uchar* codes, thread float (&v)[N]) {
    if (N == 8) {
      const uint q = *(device const uint*)codes;
      four(q, v);
      four(q >> 16, v + 4 % N);
    } else {
      four(*(device const ushort*)codes, v);
    }
  }

  static constexpr int paired(int f, int e) { return 2 * f + e; }
  static METAL_FUNC uint pair_bits(metal::uint2 q, int f) {
    const uint four = q.x >> (f / 2 * 16) & 0xffffu;
    return (four | four << 12) >> (f % 2 * 8);
  }
  static METAL_FUNC void pair(uint two, uint base, thread metal::half2& codes) {
    codes = as_type<metal::half2>((two & 0x000f000fu) | base) - metal::half2(half(1032.0f));
  }
  static METAL_FUNC void pair(uint two, uint base, thread metal::vec<bfloat, 2>& codes) {
    typedef metal::vec<bfloat, 2> pair_type;
    base -= kv_two_1024 - 0x43004300u;
    codes = as_type<pair_type>((two & 0x000f000fu) | base) - pair_type(bfloat(136.0f));
  }

  static METAL_FUNC void write(device uchar* row, uint i, uint code, uint next) {
    if (i % 2 == 0) row[i / 2] = uchar(code | next << 4);
  }
};

// D columns of Bits each; N is 4 or 8.
template <int D, int Bits> struct PackedKv {
  using unit = uchar;
  using Codes = KvCodes<Bits>;
  FOUNDRY_CONST bool packed = true;
  FOUNDRY_CONST int code_bytes = D * Bits / 8;
  FOUNDRY_CONST bool pairs_of_words = packed_row_bytes(D, Bits) % 8 == 0; // words may be read two at a time

  template <int N>
  static METAL_FUNC float load_codes(device const uchar* row, uint column, bool, thread float (&v)[N]) {
    static_assert(N == 4 || N == 8, "codes are read in words");
    const float scale = float(((device const half*)(row + code_bytes))[column / kv_block]);
    Codes::template read<pairs_of_words>(row + column * Bits / 8, v);
    return scale;
  }

  // For products of matrices: codes, which are exact in 16 bits; and the scales of a row. Weights times scales may be
  // smaller than any half.
  template <typename T> using factor = bfloat;
  static constexpr int paired(int f, int e) { return Codes::paired(f, e); }
  template <int Bytes> static METAL_FUNC metal::uint2 words(device const uchar* p) {
    if (Bytes == 8 && pairs_of_words) return *(device const metal::uint2*)p;
    if (Bytes == 2) return metal::uint2(*(device const ushort*)p, 0);
    return metal::uint2(((device const uint*)p)[0], Bytes == 8 ? ((device const uint*)p)[1] : 0);
  }
  template <typename E, int N>
  static METAL_FUNC void load_pairs(device const uchar* row, uint column, bool, uint base,
                                    thread metal::vec<E, 2> (&pairs)[N]) {
    const metal::uint2 q = words<2 * N * Bits / 8>(row + column * Bits / 8);
    for (int f = 0; f < N; ++f) Codes::pair(Codes::pair_bits(q, f), base, pairs[f]);
  }
  template <int N> static METAL_FUNC void load_scales(device const uchar* row, thread float (&scales)[N]) {
    device const uint* pairs = (device const uint*)(row + code_bytes); // a row has whole words
    for (int i = 0; i < N; i += 2) {
      const uint word = pairs[i / 2];
      const metal::half2 two = as_type<metal::half2>(word);
      scales[i] = float(two.x);
      if (i + 1 < N) scales[i + 1] = float(two.y);
    }
  }

  template <int N> static METAL_FUNC void load(device const uchar* row, uint column, bool wide, thread float (&v)[N]) {
    const float scale = load_codes(row, column, wide, v);
    for (int i = 0; i < N; ++i) v[i] *= scale;
  }
};

#define FOUNDRY_KV_READER(policy, name, bits, symmetric) template <int D> using policy = PackedKv<D, bits>;
FOUNDRY_KV_FORMATS(FOUNDRY_KV_READER)

// The rows of one head of one sequence. Pages: key i is row i % page of page table[i / page]; their memory may have
// more elements than 32 bits count.
template <typename Store> struct KvRows {
  device const typename Store::unit* first;
  uint token, page; // strides
  device const int* table;
  uint shift; // log2 of the tokens of a page

  METAL_FUNC device const typename Store::unit* row(int key, bool paged) const thread {
    if (!paged) return first + uint(key) * token;
    return first + ulong(uint(table[key >> shift])) * page + (uint(key) & ((1u << shift) - 1)) * token;
  }
};

} // namespace foundry
#endif
