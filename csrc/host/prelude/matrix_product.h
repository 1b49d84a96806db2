// The product of 8x8 matrices that lie spread over the lanes: operands are published in rows, and the first lane to
// come back computes it for all, in order of k.
#pragma once
#include "lanes.h"
#include "matrix_layout.h"

namespace msl_ {

typedef float Row __attribute__((vector_size(32), aligned(4)));

// D = A B + C of row-major 8x8 operands that lie one after another.
MSL_INLINE void multiply_8x8(float* d, const float* operands) {
  const float *a = operands, *b = operands + 64, *c = operands + 128;
  Row rows_of_b[8];
  for (int k = 0; k < 8; k++) rows_of_b[k] = *(const Row*)(b + 8 * k);
  for (int i = 0; i < 8; i++) {
    Row sum = *(const Row*)(c + 8 * i);
    for (int k = 0; k < 8; k++) sum += a[8 * i + k] * rows_of_b[k];
    *(Row*)(d + 8 * i) = sum;
  }
}

MSL_LANE_CODE Pair multiply_accumulate(Pair a, Pair b, Pair c, int line) {
  Thread* me = current();
  Simdgroup* simdgroup = me->simdgroup;
  const uint offset = matrix_row(me->lane) * 8 + matrix_column(me->lane);
  float* to = simdgroup->in->matrices + offset;
  __builtin_memcpy(to, &a, sizeof a);
  __builtin_memcpy(to + 64, &b, sizeof b);
  __builtin_memcpy(to + 128, &c, sizeof c);
  wait_at(me, simdgroup, site(kMatrixProduct, line));
  auto* product = (float*)simdgroup->result;
  if (!simdgroup->reduced) {
    multiply_8x8(product, simdgroup->out->matrices);
    simdgroup->reduced = true;
  }
  Pair d;
  __builtin_memcpy(&d, product + offset, sizeof d);
  return d;
}
template <class A, class B>
MSL_INLINE Pair multiply_accumulate(const metal::vec<A, 2>& a, const metal::vec<B, 2>& b, Pair c, int line) {
  return multiply_accumulate(to_pair(a), to_pair(b), c, line);
}

} // namespace msl_
