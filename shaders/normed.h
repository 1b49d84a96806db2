// An RMSNorm and the products after it: what kernels have in common that weight x on its way to the products (gemv.h).
#pragma once
#include "decode.h"
#include "gemv.h"

namespace foundry {

// Where in the threadgroup, and for what, a thread is.
struct Seat {
  uint group, row_group; // of the grid
  ushort lane, simdgroup, simdgroups;

  // Of the grid, and of the team. A split is a power of two: a division would take as long as a read from memory.
  METAL_FUNC uint team(uint split) const {
    return group * (simdgroups >> metal::ctz(split)) + (simdgroup >> metal::ctz(split));
  }
  METAL_FUNC uint part(uint split) const { return simdgroup & (split - 1); }
};

// (norm x) W^T: for lane m * N + n that of row m of the team's rows of x and of w_row[n].
template <typename Q, typename T, int M, int V, int N, int U, int P>
METAL_FUNC float normed_products(device const typename Q::block* thread (&w_row)[N], device const T* x,
                                 device const T* gain, constant NormedArgs& args, bool busy, Seat seat,
                                 threadgroup float* partial) {
  constexpr bool together = M * N + M <= int(simd_width); // a lane for each sum, those of squares too
  constexpr int C = together ? normed_sums(M, N) : M * N;
  const Weighted<T, V == 1 ? 1 : 8, P> rows = {x, gain, args.offset};
  uint x_row[M];
  for (int m = 0; m < M; ++m) x_row[m] = metal::min(seat.row_group * M + m, args.rows - 1) * args.k;
  float sum[M * N], squares[M], all[C];
  const uint part = seat.part(args.split), end = busy ? args.k : 0; // a team past the last output reads nothing
  walk<Q, M, V, N, U, P>(w_row, rows, x_row, part * simd_width + seat.lane, args.split, end, sum, squares);
  for (int i = 0; i < C; ++i)
    all[i] = i < M * N ? sum[i < M * N ? i : 0] : i < M * N + M ? squares[i - M * N < M ? i - M * N : 0] : 0.0f;
  const float total = team_sums(all, args.split, part, partial, seat.simdgroup, seat.lane);
  const int m = metal::min(int(seat.lane) / N, M - 1);
  float of_row;
  if (together) {
    of_row = metal::simd_shuffle(total, ushort(M * N + m));
  } else {
    of_row = team_sums(squares, args.split, part, partial + seat.simdgroups * C, seat.simdgroup, seat.lane);
    of_row = metal::simd_shuffle(of_row, ushort(m));
  }
  return total * metal::rsqrt(of_row / float(args.k) + args.eps);
}

} // namespace foundry
