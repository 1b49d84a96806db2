// Products of 8x8 matrices as tensor cores have them: of 16 bits as many at once as one takes, of floats in parts.
#pragma once
#include <metal_simdgroup_matrix>

#include "common/portable.h"

namespace foundry {

// A lane's place in an 8x8 matrix of a simdgroup: a row, and a column with the next.
struct Fragment {
  int row, column;
};
METAL_FUNC Fragment fragment_of(uint lane) {
  return {int((lane / 4 & 4) + lane / 2 % 4), int((lane / 4 & 2) * 2 + lane % 2 * 2)};
}

// d[i] += a[i][0] * b[0] + a[i][1] * b[1]. Metal does these one by one; where the platform has one instruction for all
// four, its prelude overloads this for matrices of 16 bits.
template <typename D, typename A, typename B>
METAL_FUNC void multiply_accumulate_2x2(thread D (&d)[2], thread const A (&a)[2][2], thread const B (&b)[2]) {
  for (int i = 0; i < 2; ++i)
    for (int k = 0; k < 2; ++k) metal::simdgroup_multiply_accumulate(d[i], a[i][k], b[k], d[i]);
}

// The same with the transposes of what `b` holds: a lane's element of one is another lane's. The preludes that overload
// the product do this, too, for which a tensor core wants them so.
template <typename D, typename A>
METAL_FUNC void multiply_accumulate_2x2_transposed(thread D (&d)[2], thread const A (&a)[2][2], thread A (&b)[2],
                                                   uint lane) {
  const Fragment own = fragment_of(lane);
  A turned[2];
  for (int k = 0; k < 2; ++k) {
    auto pair = b[k].thread_elements();
    for (int e = 0; e < 2; ++e) {
      const int row = own.column + e, column = own.row;
      const ushort from = ushort((row & 4) * 4 + (row & 3) * 2 + (column & 4) * 2 + (column & 2) / 2);
      const auto other = as_type<decltype(pair)>(metal::simd_shuffle(as_type<uint>(pair), from));
      turned[k].thread_elements()[e] = column % 2 == 0 ? other.x : other.y;
    }
  }
  multiply_accumulate_2x2(d, a, turned);
}

// d += a * b of floats, of whose bits 22 are enough: a tensor core has them in three products, where all bits take a
// chain of shuffles.
template <typename D, typename A, typename B>
METAL_FUNC void multiply_accumulate_near(thread D& d, thread const A& a, thread const B& b) {
  metal::simdgroup_multiply_accumulate(d, a, b, d);
}

// d[i] += a[i] * b, as the function above; a tensor core has both in one product.
template <typename D, typename A, typename B>
METAL_FUNC void multiply_accumulate_near_2x1(thread D (&d)[2], thread const A (&a)[2], thread const B& b) {
  for (int i = 0; i < 2; ++i) metal::simdgroup_multiply_accumulate(d[i], a[i], b, d[i]);
}

// Two floats as sums of 16-bit numbers: together they are off by less than 2^-17 of a float.
METAL_FUNC void split(metal::float2 x, thread metal::half2& most, thread metal::half2& rest) {
  most = metal::half2(x);
  rest = metal::half2(x - metal::float2(most));
}
METAL_FUNC void split(metal::float2 x, thread metal::vec<bfloat, 2>& most, thread metal::vec<bfloat, 2>& rest) {
  most = metal::vec<bfloat, 2>(bfloat(x.x), bfloat(x.y));
  const uint both = as_type<uint>(most); // a bfloat is the upper half of a float
  x -= metal::float2(as_type<float>(both << 16), as_type<float>(both & 0xffff0000u));
  rest = metal::vec<bfloat, 2>(bfloat(x.x), bfloat(x.y));
}

} // namespace foundry
