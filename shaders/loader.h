// How kernels read a row of a matrix, a chunk at a time: packed blocks through their format policy, dense elements as
// vectors (V = 4: the host proved rows aligned to four elements and k a multiple of the chunk) or one by one (V = 1).
#pragma once
#include "quant/formats.h"
#include "vec.h"

namespace foundry {

// load(row, k, end, w): elements k .. k + chunk-1 of the row are the returned scale times w; those past `end` are 0.
template <typename Q, int V, bool Packed = (Q::block_size > 1)> struct Loader {
  static METAL_FUNC float load(device const typename Q::block* row, uint k, uint, thread float (&w)[chunk]) {
    static_assert(Q::block_size % chunk == 0, "a chunk lies within one block");
    return Q::unpack(row[k / Q::block_size], short(k % Q::block_size / chunk), w);
  }
};

template <typename Q> struct Loader<Q, 4, false> {
  static METAL_FUNC float load(device const typename Q::block* row, uint k, uint, thread float (&w)[chunk]) {
    float lo[4], hi[4];
    foundry::load(row + k, lo);
    foundry::load(row + k + 4, hi);
    for (int j = 0; j < 4; ++j) {
      w[j] = lo[j];
      w[j + 4] = hi[j];
    }
    return 1.0f;
  }
};

template <typename Q> struct Loader<Q, 1, false> {
  static METAL_FUNC float load(device const typename Q::block* row, uint k, uint end, thread float (&w)[chunk]) {
    for (int j = 0; j < chunk; ++j) w[j] = k + j < end ? float(row[k + j]) : 0.0f;
    return 1.0f;
  }
};

} // namespace foundry
