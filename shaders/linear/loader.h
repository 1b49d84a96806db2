// How kernels read a row of a matrix, a chunk at a time: packed blocks through their format policy, dense elements as
// vectors (VEC = 8: the host proved rows aligned to 16 bytes and k a multiple of the chunk) or one by one (VEC = 1).
#pragma once
#include "quant/formats.h"
#include "common/vec.h"

namespace foundry {

// Packed formats make several chunks of the same bytes (Q::shared); a unit is those chunks, `gap` elements apart.
template <typename Q> struct Unit {
  FOUNDRY_CONST uint chunks = Q::shared;
  FOUNDRY_CONST uint in_block = Q::block_size > 1 ? Q::block_size / (chunk * Q::shared) : 1; // units
  FOUNDRY_CONST uint gap = in_block * chunk;
  FOUNDRY_CONST uint elements = chunk * Q::shared;
  // Where the first chunk of unit i of a row begins.
  static METAL_FUNC uint first(uint i) { return i / in_block * (in_block * elements) + i % in_block * chunk; }
};

// load(row, k, c, end, w): elements k + c * gap .. k + c * gap + chunk-1 of the row, where k is the first of a unit and
// c one of its chunks, are the returned scale times w; those past `end` are 0.
template <typename Q, int VEC, bool Packed = (Q::block_size > 1)> struct Loader {
  static METAL_FUNC float load(device const typename Q::block* row, uint k, int c, uint, thread float (&w)[chunk]) {
    static_assert(Q::block_size % (chunk * Q::shared) == 0, "units fill a block");
    return Q::unpack(row[k / Q::block_size], short(k % Q::block_size / chunk), c, w);
  }
};

// Where element at.x + at.y of a row lies, both multiples of a chunk and at.y a constant. In units of 16 bytes Apple's
// GPUs scale an index on the way, where single elements are an address in three instructions of 64 bits. The preludes
// of platforms that have it otherwise overload this for `at` as it is.
template <typename T, typename At> METAL_FUNC device const T* chunk_at(device const T* row, At at) {
  constexpr uint units = chunk * sizeof(T) / sizeof(metal::uint4);
  return (device const T*)((device const metal::uint4*)row + at.x / chunk * units + at.y / chunk * units);
}

template <typename Q> struct Loader<Q, 8, false> {
  static METAL_FUNC float load(device const typename Q::block* row, uint k, int, uint, thread float (&w)[chunk]) {
    static_assert(chunk == 8, "a chunk is what one load gives");
    foundry::load(chunk_at(row, metal::uint2(k, 0)), w);
    return 1.0f;
  }
};

template <typename Q> struct Loader<Q, 1, false> {
  static METAL_FUNC float load(device const typename Q::block* row, uint k, int, uint end, thread float (&w)[chunk]) {
    for (int j = 0; j < chunk; ++j) w[j] = k + j < end ? float(row[k + j]) : 0.0f;
    return 1.0f;
  }
};

// Elements k .. k + chunk-1, for any k that is a multiple of the chunk.
template <typename Q, int VEC>
METAL_FUNC float load_chunk(device const typename Q::block* row, uint k, uint end, thread float (&w)[chunk]) {
  const uint c = k / Unit<Q>::gap % Unit<Q>::chunks;
  return Loader<Q, VEC>::load(row, k - c * Unit<Q>::gap, c, end, w);
}

// Elements k + c .. of a row of x.
template <typename T, int VEC>
METAL_FUNC void load_row(device const T* row, uint k, uint c, uint end, thread float (&w)[chunk]) {
  if (VEC == 8)
    foundry::load(chunk_at(row, metal::uint2(k, c)), w);
  else
    Loader<Dense<T>, VEC>::load(row, k + c, 0, end, w);
}

} // namespace foundry
