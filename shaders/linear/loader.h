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

// Where a chunk of a row begins: at.x is its number, at.y its first element. Apple's GPUs scale an index of 16 bytes on
// the way, where single elements are an address in three instructions of 64 bits. A prelude may overload this for its
// platform.
template <typename T, typename At> METAL_FUNC device const T* chunk_at(device const T* row, At at) {
  return (device const T*)((device const metal::uint4*)row + at.x * (chunk * sizeof(T) / sizeof(metal::uint4)));
}

template <typename Q> struct Loader<Q, 8, false> {
  static METAL_FUNC float load(device const typename Q::block* row, uint k, int, uint, thread float (&w)[chunk]) {
    static_assert(chunk == 8, "a chunk is what one load gives");
    foundry::load(chunk_at(row, metal::uint2(k / chunk, k)), w);
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

} // namespace foundry
