// y = x W^T for a weight of any format: linear_rows for up to eight rows of x, linear_tiles for more. Sums are f32, the
// result is rounded once, after the epilogue. Which kernel serves which M is decided in csrc/ops/linear.cpp.
#include "linear/linear.h"

#include "linear/epilogue.h"
#include "linear/products.h"
#include "linear/tiles.h"

using namespace metal;
using namespace foundry;

// Matrix-vector product for ROWS rows at once: every chunk of W is read and unpacked once for all rows. A team of
// args.split simdgroups makes OUTS neighbouring outputs (gemv.h). Rows beyond args.rows and outputs beyond args.n repeat
// the last valid one and are not stored.
// foundry-lint: instance(linear_rows<Q8_0, half, 4, 16, 4, 1, 1>)
// foundry-lint: instance(linear_rows<Q4_0, bfloat, 1, 8, 2, 2, 4>)
// foundry-lint: instance(linear_rows<Q8_0, half, 1, 16, 4, 0, 2>)
// foundry-lint: instance(linear_rows<Q4_K, half, 2, 16, 4, 0, 1>)
// foundry-lint: instance(linear_rows<F16, float, 8, 1, 4, 1, 1>)
// foundry-lint: instance(linear_rows<Q8_0, half, 8, 16, 32, 2, 0>)
// foundry-lint: instance(linear_rows<Q4_K, bfloat, 8, 16, 16, 2, 0>)
// foundry-lint: instance(linear_rows<BF16, bfloat, 8, 1, 16, 2, 0>)
template <typename Q, typename T, int ROWS, int VEC, int OUTS, int UNROLL, int CHAINS>
[[kernel]] void linear_rows(
    device const typename Q::block* weight [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device const T* residual [[buffer(3)]],
    device T* y [[buffer(4)]],
    constant LinearArgs& args [[buffer(5)]],
    threadgroup float* partial [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]],
    ushort lane [[thread_index_in_simdgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort simdgroups [[simdgroups_per_threadgroup]]) {
  using W = NeighbouringRows<Q>;
  using P = Products<Q, T, ROWS, VEC, OUTS, UNROLL, CHAINS, W>;
  const uint m0 = group.y * ROWS;
  uint x_row[ROWS];
  for (int m = 0; m < ROWS; ++m)
    x_row[m] = m0 + m == 0 ? 0 : row_offset(args.x, min(m0 + m, args.rows - 1));
  P products;
  products.set(x, x_row, min(args.rows - m0, uint(ROWS)), partial, simdgroup, simdgroups, args.k, false);
  const uint in_group = team_in<CHAINS>(simdgroups, args.split) * OUTS, turn = groups.x * in_group;
  const uint own = team_in<CHAINS>(simdgroup, args.split) * OUTS;
  uint first = group.x * in_group;
  const W w = {weight, args.row_blocks, first + own, args.n};
  products.begin(w, turn, args.split, args.k, lane, simdgroup);
  do {
    const uint n0 = first + own;  // a team past the last output has nothing to read
    const uint i0 = products.first_sum(args.split, lane, simdgroup);
    Addends<T> addends = {T(0.0f), T(0.0f)};
    if (m0 + i0 / OUTS < args.rows && n0 + i0 % OUTS < args.n)
      addends = addends_of(m0 + i0 / OUTS, n0 + i0 % OUTS, bias, residual, args);
    const auto sums = products.plain(w, args.split, args.k, n0 < args.n ? args.k : 0, lane, simdgroup, partial);
    for (uint i = sums.first; i < sums.count; i += sums.step) {
      const uint m = m0 + i / OUTS, n = n0 + i % OUTS;
      if (sums.has(i) && m < args.rows && n < args.n) {
        if (P::again && i != i0) addends = addends_of(m, n, bias, residual, args);
        store_output(sums[i], addends, m, n, y, args);
      }
    }
    first += turn;
  } while (P::again && first < args.n);
}

// Matrix product in tiles (tiles.h). Tile rows beyond the matrices repeat the last valid row; their products are never
// stored.
// foundry-lint: instance(linear_tiles<Q8_0, half, 8>)
// foundry-lint: instance(linear_tiles<BF16, bfloat, 1>)
template <typename Q, typename T, int VEC>
[[kernel]] void linear_tiles(
    device const typename Q::block* weight [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device const T* residual [[buffer(3)]],
    device T* y [[buffer(4)]],
    constant LinearArgs& args [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    ushort tid [[thread_index_in_threadgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  using W = Tile<Q, T, VEC>;
  constexpr int BM = linear_bm, BN = linear_bn;
  threadgroup float memory[W::floats];
  const uint m0 = group.y * BM, n0 = group.x * BN, r = W::row(tid);
  device const typename Q::block* w_row[W::w_rows];
  for (int i = 0; i < W::w_rows; ++i)
    w_row[i] = weight + ulong(min(n0 + r + i * W::w_step, args.n - 1)) * args.row_blocks;
  device const T* x_row = x + row_offset(args.x, min(m0 + r, args.rows - 1));
  W::multiply(x_row, w_row, args.k, memory, tid, simdgroup);
  for (int i = tid; i < BM * BN; i += linear_tile_threads) {
    const uint m = m0 + i / BN, n = n0 + i % BN;
    if (m < args.rows && n < args.n) store_output(memory[i], m, n, bias, residual, y, args);
  }
}
