// An RMSNorm and the products after it: what kernels have in common that weight x on its way to the products (gemv.h).
#pragma once
#include "linear/norm_linear.h"
#include "linear/gemv.h"

namespace foundry {

// Where in the threadgroup, and for what, a thread is.
struct ThreadPos {
  uint group, row_group; // of the grid
  ushort lane, simdgroup, simdgroups;

  // Of the grid, and of the team. A split is a power of two: a division would take as long as a read from memory.
  METAL_FUNC uint team(uint split) const {
    return group * (simdgroups >> metal::ctz(split)) + (simdgroup >> metal::ctz(split));
  }
  METAL_FUNC uint part(uint split) const { return simdgroup & (split - 1); }
};

// (norm x) W^T: for lane m * OUTS + n that of row m of the team's rows of x and of w_row[n]. normed: false for x W^T.
template <typename Q, typename T, int ROWS, int VEC, int OUTS, int UNROLL, int CHAINS>
METAL_FUNC float normed_products(device const typename Q::block* thread (&w_row)[OUTS], device const T* x,
                                 device const T* norm_weight, constant NormedArgs& args, bool busy, ThreadPos pos,
                                 threadgroup float* partial, bool normed = true) {
  constexpr bool together = ROWS * OUTS + ROWS <= int(simd_width); // a lane for each sum, those of squares too
  constexpr int C = together ? normed_sums(ROWS, OUTS) : ROWS * OUTS;
  const NormedRows<T, VEC == 1 ? 1 : 8, CHAINS> rows = {x, norm_weight, args.offset, normed};
  uint x_row[ROWS];
  for (int m = 0; m < ROWS; ++m) x_row[m] = metal::min(pos.row_group * ROWS + m, args.rows - 1) * args.k;
  float sum[ROWS * OUTS], squares[ROWS], all[C];
  const uint part = pos.part(args.split), end = busy ? args.k : 0; // a team past the last output reads nothing
  accumulate_k<Q, ROWS, VEC, OUTS, UNROLL, CHAINS>(w_row, rows, x_row, part * simd_width + pos.lane, args.split, end,
                                                   sum, squares);
  for (int i = 0; i < C; ++i)
    all[i] = i < ROWS * OUTS          ? sum[i < ROWS * OUTS ? i : 0]
             : i < ROWS * OUTS + ROWS ? squares[i - ROWS * OUTS < ROWS ? i - ROWS * OUTS : 0]
                                      : 0.0f;
  const float total = team_sums(all, args.split, part, partial, pos.simdgroup, pos.lane);
  if (!normed) return total;
  const int m = metal::min(int(pos.lane) / OUTS, ROWS - 1);
  float of_row;
  if (together) {
    of_row = metal::simd_shuffle(total, ushort(ROWS * OUTS + m));
  } else {
    of_row = team_sums(squares, args.split, part, partial + pos.simdgroups * C, pos.simdgroup, pos.lane);
    of_row = metal::simd_shuffle(of_row, ushort(m));
  }
  return total * metal::rsqrt(of_row / float(args.k) + args.eps);
}

} // namespace foundry
