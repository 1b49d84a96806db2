// Products of matrices by an M5's matrix units as AIR has them: __tensorops_impl_matmul2d_op_.. on matrices that lie
// spread over the lanes of a simdgroup, in the layout that MLX takes for an M5's. A matrix is 16x16 parts, side by side
// or one above the other; a lane has two rows of four elements of each part.
#pragma once
#include "metal_prelude.h"

namespace air_tensors {

struct Descriptor { // mpp::tensor_ops::matmul2d_descriptor
  int m, n, k;
  uint8_t left_turned, right_turned, relaxed;
  int adds;
};
struct Operands {
  const void *left, *right;
};

// Bytes of a lane's part of operand 0 (left), 1 (right) or 2 (the result). A type's lowest byte is its bits.
inline int64_t bytes(int operand, int m, int n, int k, int left, int result) {
  const int elements = (operand == 0 ? m * k : operand == 1 ? k * n : m * n) / MSL_LANES;
  return elements * ((operand == 2 ? result : left) & 255) / 8;
}
// Element `index` of a lane's part, or all of it.
inline void* element(void* part, uint16_t index, int operand, int left, int result) {
  const int size = ((operand == 2 ? result : left) & 255) / 8;
  return index == 0xffff ? part : static_cast<char*>(part) + index * size;
}

// Where the element of a matrix of `columns` columns lies.
struct Place {
  uint32_t lane;
  int index;
  Place(int row, int column, int columns) {
    const int part = row / 16 * (columns / 16) + column / 16, r = row % 8, half = row % 16 / 8;
    lane = (column >> 2 & 1) | (r & 3) << 1 | (column >> 3 & 1) << 3 | (r >> 2 & 1) << 4;
    index = part * 8 + half * 4 + column % 4;
  }
};

template <class A, class B, class C>
void run(const void* descriptor, const void* left, const void* right, void* result, int site) {
  const Descriptor& d = *static_cast<const Descriptor*>(descriptor);
  const Operands mine{left, right};
  const msl_::Simdgroup* simdgroup = msl_::exchange(mine, msl_::site(msl_::kShuffle, site));
  Operands all[MSL_LANES];
  for (uint32_t lane = 0; lane < MSL_LANES; lane++) all[lane] = msl_::peek<Operands>(simdgroup, lane);
  for (int row = 0; row < d.m; row++)
    for (int column = 0; column < d.n; column++) {
      const Place own(row, column, d.n);
      if (own.lane != msl_::own_lane()) continue;
      C& to = static_cast<C*>(result)[own.index];
      float sum = d.adds ? static_cast<float>(to) : 0.0f;
      for (int k = 0; k < d.k; k++) {
        const Place a = d.left_turned ? Place(k, row, d.m) : Place(row, k, d.k);
        const Place b = d.right_turned ? Place(column, k, d.k) : Place(k, column, d.n);
        sum += static_cast<float>(static_cast<const A*>(all[a.lane].left)[a.index]) *
               static_cast<float>(static_cast<const B*>(all[b.lane].right)[b.index]);
      }
      to = static_cast<C>(sum);
    }
  msl_::wait_at_simd_barrier<false>(site); // nobody writes operands that others still read
}

} // namespace air_tensors
