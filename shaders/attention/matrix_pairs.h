// Products of 16-bit 8x8 matrices, as many at once as a tensor core takes.
#pragma once
#include <metal_simdgroup_matrix>

#include "common/portable.h"

namespace foundry {

// d[i] += a[i][0] * b[0] + a[i][1] * b[1]. Metal does these one by one; where the platform has one instruction for all
// four, its prelude overloads this for matrices of 16 bits.
template <typename D, typename A, typename B>
METAL_FUNC void multiply_accumulate_2x2(thread D (&d)[2], thread const A (&a)[2][2], thread const B (&b)[2]) {
  for (int i = 0; i < 2; ++i)
    for (int k = 0; k < 2; ++k) metal::simdgroup_multiply_accumulate(d[i], a[i][k], b[k], d[i]);
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
