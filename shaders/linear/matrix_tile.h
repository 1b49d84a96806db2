// Products of some rows of x with rows of W of a format that has Fragments (matrix_rows.h), for a threadgroup: steps of
// W and of x are copied to threadgroup memory STEPS - 1 ahead, x once for all teams. A team of `split` simdgroups
// shares K and makes OUTS outputs of 8 * BLOCKS rows, each group of codes before its scale.
#pragma once
#include "linear/products.h"

namespace foundry {

template <typename Q, typename T, int VEC, int OUTS, int STEPS, int BLOCKS> struct MatrixTile {
  using Step = MatrixStep<Q, T, OUTS>;
  FOUNDRY_CONST uint rows = 8 * BLOCKS, step = Step::step, w_bytes = OUTS * Step::stride;
  FOUNDRY_CONST uint x_bytes = rows * Step::x_stride, sum_stride = matrix_sums_stride(OUTS);

  threadgroup uint* memory; // where each row of x begins, written by the caller; then steps, in the end sums
  uint split, there;        // rows of x
  ushort lane, simdgroup, simdgroups;

  METAL_FUNC uint teams() const thread { return teams_in(simdgroups, split); }
  METAL_FUNC uint outputs() const thread { return teams() * OUTS; } // of the threadgroup

  // `copies` and `past`: of the team's rows of W (CopyWeights or CopyWords, MatrixStep). Row m of x begins `unit` times
  // memory[m] elements behind x. `blocks`: of eight rows that are multiplied. All threads must call this.
  template <typename Copies>
  METAL_FUNC void multiply(thread const Copies& copies, thread const uint (&past)[OUTS / 8], device const T* x,
                           uint unit, uint blocks, uint k) const thread {
    threadgroup uchar* const stages = (threadgroup uchar*)(memory + rows);
    const uint part = part_of(simdgroup, split), team = team_of(0, simdgroup, simdgroups, split);
    threadgroup uchar* const x_stages = stages + part * STEPS * x_bytes;
    threadgroup uchar* const w_stages = stages + split * STEPS * x_bytes + simdgroup * STEPS * w_bytes;
    typename Step::Sum sum[BLOCKS];
    for (int b = 0; b < BLOCKS; ++b)
      for (uint i = 0; i < Step::tiles; ++i)
        for (int j = 0; j < 2; ++j) sum[b][i][j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    const Fragment own = fragment_of(lane);
    const uint t = own.column / 2, base = code_base<T>(k >> 31);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);

    // Turn by turn: copies for one that is STEPS - 1 later, then the products of this one. All parts have as many
    // turns.
    const uint turns = ((k + step - 1) / step + split - 1) / split;
    for (uint turn = 0; turn < turns + STEPS - 1; ++turn) {
      if (turn >= STEPS - 1) {
        wait_for_copies<STEPS - 2>((threadgroup metal::uint4*)stages);
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      }
      const uint column = (turn * split + part) * step, slot = turn % STEPS;
      if (column < k) {
        copies.copy(column, k, w_stages + slot * w_bytes, lane);
        const uint at = lane * chunk;
        for (uint m = team; m < there; m += teams())
          if (at < step && column + at < k)
            copy_chunk<VEC>(x + ulong(memory[m]) * unit + column + at,
                            (threadgroup T*)(x_stages + slot * x_bytes + m * Step::x_stride) + at);
      }
      end_group_of_copies((threadgroup metal::uint4*)stages);
      if (turn < STEPS - 1) continue;
      const uint from = column - (STEPS - 1) * split * step, now = (turn + 1) % STEPS;
      threadgroup const uchar* w_rows = w_stages + now * w_bytes + own.row * Step::stride;
      threadgroup const uchar* x_row = x_stages + now * x_bytes + own.row * Step::x_stride + t * 4 * sizeof(T);
#pragma unroll
      for (uint period = 0; period < step / Step::columns; ++period)
        if (from + period * Step::columns < k)
          Step::template add_period<BLOCKS>(w_rows, past, x_row, 8 * Step::x_stride, blocks, false, period, t, base,
                                            lane, sum);
    }

    // The sums take the place of the steps.
    threadgroup float* const partial = (threadgroup float*)stages;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    for (int b = 0; b < BLOCKS; ++b)
      for (uint i = 0; i < 2 * Step::tiles; ++i)
        for (int e = 0; e < 2; ++e)
          partial[(simdgroup * rows + 8 * b + own.column + e) * sum_stride + own.row + 8 * i] =
              sum[b][i / 2][i % 2].thread_elements()[e];
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }

  // Row m of x, and of W column `column` of the threadgroup's.
  METAL_FUNC float sum(uint m, uint column) const thread {
    threadgroup const float* own =
        (threadgroup const float*)(memory + rows) + (column / OUTS * split * rows + m) * sum_stride + column % OUTS;
    float total = *own;
    for (uint p = 1; p < split; ++p) total += own[p * rows * sum_stride];
    return total;
  }
};

} // namespace foundry
