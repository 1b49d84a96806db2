// An RMSNorm and the products after it: what kernels have in common that weight x on its way to the products
// (products.h).
#pragma once
#include "linear/norm_linear.h"
#include "linear/products.h"

namespace foundry {

// The rows of x of a team of kernels of norm_linear.metal.
template <typename P, typename T, int ROWS>
METAL_FUNC void set_rows(thread P& products, device const T* x, constant NormedArgs& args, uint row_group,
                         ushort simdgroup, ushort simdgroups, threadgroup float* partial, bool normed) {
  uint x_row[ROWS];
  const uint m0 = row_group * ROWS;
  for (int m = 0; m < ROWS; ++m) x_row[m] = metal::min(m0 + m, args.rows - 1) * args.k;
  products.set(x, x_row, metal::min(args.rows - m0, uint(ROWS)), partial, simdgroup, simdgroups, args.k, normed);
}

// Row `row` of x behind its norm, by lanes: lane n of the team's first simdgroup has the product with row n of W.
template <typename Q, typename T, int VEC, int OUTS, int UNROLL, int CHAINS, typename W>
METAL_FUNC float normed_product(thread const W& w, device const T* x, device const T* norm_weight,
                                constant NormedArgs& args, uint row, bool busy, ushort lane, ushort simdgroup,
                                ushort simdgroups, threadgroup float* partial) {
  using P = Products<Q, T, 1, VEC, OUTS, UNROLL, CHAINS, W>;
  P products;
  set_rows<P, T, 1>(products, x, args, row, simdgroup, simdgroups, partial, true);
  return products
      .normed(w, norm_weight, args.offset, args.eps, true, args.split, args.k, busy ? args.k : 0, lane, simdgroup,
              simdgroups, partial)
      .total;
}

} // namespace foundry
