// Products of few rows of x with a weight, by lanes (gemv.h) or by matrices (matrix_rows.h): what kernels of either
// have in common.
#pragma once
#include "linear/gemv.h"
#include "linear/matrix_rows.h"

namespace foundry {

// A simdgroup's team, of the grid, how many a threadgroup has, and the part in the team. A split is a power of two: a
// division would take as long as a read from memory.
METAL_FUNC uint team_of(uint group, ushort simdgroup, ushort simdgroups, uint split) {
  return group * (simdgroups >> metal::ctz(split)) + (simdgroup >> metal::ctz(split));
}
METAL_FUNC uint teams_in(ushort simdgroups, uint split) { return simdgroups >> metal::ctz(split); }
METAL_FUNC uint part_of(ushort simdgroup, uint split) { return simdgroup & (split - 1); }
// A simdgroup's team in a threadgroup, or how many teams so many simdgroups are: by matrices of any split, as a step of
// K is long, and few numbers divide how many there are.
template <int CHAINS> METAL_FUNC uint team_in(ushort simdgroup, uint split) {
  if (CHAINS == by_matrices) return uint((float(simdgroup) + 0.5f) / float(split));
  return simdgroup >> metal::ctz(split);
}

// Rows of W from `first` on, those past the last as it.
template <typename Q> struct NeighbouringRows {
  device const typename Q::block* weight;
  uint row_blocks, first, end;
  METAL_FUNC device const typename Q::block* row(uint i) const {
    return weight + ulong(metal::min(first + i, end - 1)) * row_blocks;
  }
};

// The sums of a team that multiplies by lanes: lane i of its first simdgroup has that of row i / OUTS, output i % OUTS.
template <int ROWS, int OUTS> struct LaneSums {
  float total;
  uint first, step; // of those that this thread takes
  bool holds;
  FOUNDRY_CONST uint count = simd_width;
  METAL_FUNC bool has(uint i) const { return holds && i < ROWS * OUTS; }
  METAL_FUNC float operator[](uint) const { return total; }
};

FOUNDRY_CONST uint no_sum = 1u << 31; // more than there are

// x W^T, or (norm x) W^T, for a team and what follows it in the grid. W has `row(n)`: where row n of the team's begins.
// A team past the last output has `end` 0 for k. If `again`, a team has more than one turn, `turn` rows of W apart, and
// a thread may have several sums, of which first_sum is the first. All threads must call everything.
template <typename Q, typename T, int ROWS, int VEC, int OUTS, int UNROLL, int CHAINS, typename W> struct Products {
  using Sums = LaneSums<ROWS, OUTS>;
  FOUNDRY_CONST int V = VEC == 1 ? 1 : 8;
  FOUNDRY_CONST bool again = false;
  device const T* x;
  uint x_row[ROWS];

  METAL_FUNC void set(device const T* of, thread const uint (&rows)[ROWS], uint, threadgroup float*, ushort, ushort,
                      uint, bool) thread {
    x = of;
    for (int m = 0; m < ROWS; ++m) x_row[m] = rows[m];
  }
  METAL_FUNC uint first_sum(uint split, ushort lane, ushort simdgroup) const thread {
    return part_of(simdgroup, split) == 0 ? lane : no_sum;
  }
  METAL_FUNC void begin(thread const W&, uint, uint, uint, ushort, ushort) thread {}
  METAL_FUNC void norm(device const T*, float, float, uint, ushort, ushort, ushort) thread {}

  METAL_FUNC Sums plain(thread const W& w, uint split, uint, uint end, ushort lane, ushort simdgroup,
                        threadgroup float* partial) thread {
    device const typename Q::block* w_row[OUTS];
    for (int n = 0; n < OUTS; ++n) w_row[n] = w.row(n);
    float sum[ROWS * OUTS], unused[ROWS];
    const PlainRows<T, V> rows = {x};
    const uint part = part_of(simdgroup, split);
    accumulate_k<Q, ROWS, VEC, OUTS, UNROLL, CHAINS>(w_row, rows, x_row, part * simd_width + lane, split, end, sum,
                                                     unused);
    return {team_sums(sum, split, part, partial, simdgroup, lane), lane, simd_width, part == 0};
  }

  METAL_FUNC Sums normed(thread const W& w, device const T* norm_weight, float offset, float eps, bool normed,
                         uint split, uint k, uint end, ushort lane, ushort simdgroup, ushort simdgroups,
                         threadgroup float* partial) thread {
    constexpr bool together = ROWS * OUTS + ROWS <= int(simd_width); // a lane for each sum, those of squares too
    constexpr int C = together ? normed_sums(ROWS, OUTS) : ROWS * OUTS;
    device const typename Q::block* w_row[OUTS];
    for (int n = 0; n < OUTS; ++n) w_row[n] = w.row(n);
    const NormedRows<T, V, CHAINS> rows = {x, norm_weight, offset, normed};
    float sum[ROWS * OUTS], squares[ROWS], all[C];
    const uint part = part_of(simdgroup, split);
    accumulate_k<Q, ROWS, VEC, OUTS, UNROLL, CHAINS>(w_row, rows, x_row, part * simd_width + lane, split, end, sum,
                                                     squares);
    for (int i = 0; i < C; ++i)
      all[i] = i < ROWS * OUTS          ? sum[i < ROWS * OUTS ? i : 0]
               : i < ROWS * OUTS + ROWS ? squares[i - ROWS * OUTS < ROWS ? i - ROWS * OUTS : 0]
                                        : 0.0f;
    float total = team_sums(all, split, part, partial, simdgroup, lane);
    if (normed) {
      const int m = metal::min(int(lane) / OUTS, ROWS - 1);
      float of_row;
      if (together) {
        of_row = metal::simd_shuffle(total, ushort(ROWS * OUTS + m));
      } else {
        of_row = team_sums(squares, split, part, partial + simdgroups * C, simdgroup, lane);
        of_row = metal::simd_shuffle(of_row, ushort(m));
      }
      total *= metal::rsqrt(of_row / float(k) + eps);
    }
    return {total, lane, simd_width, part == 0};
  }
};

template <typename Q, typename T, int ROWS, int VEC, int OUTS, int UNROLL, typename W>
struct Products<Q, T, ROWS, VEC, OUTS, UNROLL, by_matrices, W> {
  static_assert(ROWS == matrix_rows, "as a product has them");
  using Sums = MatrixSums<OUTS>;
  using Multiply = MultiplyMatrices<Q, T, VEC, OUTS, UNROLL, W>;
  FOUNDRY_CONST bool again = true;
  MatrixRows<T> rows;
  Multiply multiply;
  bool is_whole;                                // behind a norm
  uint part;                                    // of K, the simdgroup's
  threadgroup float *squares, *partial, *other; // sums lie in two places by turns
  threadgroup uchar *whole, *stages;

  METAL_FUNC void set(device const T* x, thread const uint (&x_row)[ROWS], uint count, threadgroup float* memory,
                      ushort simdgroup, ushort simdgroups, uint k, bool normed) thread {
    rows.x = x;
    rows.count = count;
    for (int m = 0; m < ROWS; ++m) rows.row[m] = x_row[m];
    is_whole = normed;
    squares = memory;
    partial = squares + simdgroups * matrix_rows;
    other = partial + simdgroups * Sums::most;
    whole = (threadgroup uchar*)(other + simdgroups * Sums::most);
    stages = whole + (normed ? count * matrix_whole_stride(k) : 0);
    stages += simdgroup * Multiply::memory_of(normed);
  }

  METAL_FUNC uint first_sum(uint, ushort lane, ushort) const thread { return part * simd_width + lane; }
  METAL_FUNC void begin(thread const W& w, uint turn, uint split, uint k, ushort lane, ushort simdgroup) thread {
    part = simdgroup - team_in<by_matrices>(simdgroup, split) * split;
    multiply.set(w, turn, is_whole, part, stages, lane);
    multiply.ahead(rows, is_whole, part, split, k, lane);
  }

  METAL_FUNC void norm(device const T* weight, float offset, float eps, uint k, ushort lane, ushort simdgroup,
                       ushort simdgroups) thread {
    norm_rows<Q, T, VEC>(rows, weight, offset, eps, k, lane, simdgroup, simdgroups, squares, whole);
  }

  METAL_FUNC Sums plain(thread const W&, uint split, uint, uint end, ushort lane, ushort simdgroup,
                        threadgroup float*) thread {
    return sums(false, split, end, lane, simdgroup);
  }
  METAL_FUNC Sums normed(thread const W&, device const T*, float, float, bool normed, uint split, uint, uint end,
                         ushort lane, ushort simdgroup, ushort, threadgroup float*) thread {
    return sums(normed, split, end, lane, simdgroup);
  }

  METAL_FUNC Sums sums(bool normed, uint split, uint end, ushort lane, ushort simdgroup) thread {
    const Fragment own = fragment_of(lane);
    typename Multiply::Sum sum[1];
    for (int i = 0; i < OUTS / 16; ++i)
      for (int j = 0; j < 2; ++j) sum[0][i][j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    multiply.multiply_part(rows, normed, whole, part, split, end, lane, sum);
    threadgroup float* const team = partial + (simdgroup - part) * Sums::most;
    for (int i = 0; i < OUTS / 8; ++i)
      for (int e = 0; e < 2; ++e)
        team[part * Sums::most + (own.column + e) * OUTS + own.row + 8 * i] = sum[0][i / 2][i % 2].thread_elements()[e];
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    partial = other;
    other = team - (simdgroup - part) * Sums::most;
    return {team, part * simd_width + lane, split * simd_width,
            (rows.count * OUTS + simd_width - 1) / simd_width * simd_width, split};
  }
};

} // namespace foundry
