// y = x W^T for a weight of any format: linear_rows for up to eight rows of x, linear_tiles for more. Sums are f32, the
// result is rounded once, after the epilogue. Which kernel serves which M is decided in csrc/ops/linear.cpp.
#include "linear/linear.h"

#include "linear/epilogue.h"
#include "linear/gemv.h"
#include "linear/tiles.h"

using namespace metal;
using namespace foundry;

// Matrix-vector product for ROWS rows at once: every chunk of W is read and unpacked once for all rows. A team of
// args.split simdgroups makes OUTS neighbouring outputs (gemv.h). Rows beyond args.rows and outputs beyond args.n repeat
// the last valid one and are not stored.
// foundry-lint: instance(linear_rows<Q8_0, half, 4, 16, 4, 1, 1>)
// foundry-lint: instance(linear_rows<Q4_0, bfloat, 1, 8, 2, 2, 4>)
// foundry-lint: instance(linear_rows<Q4_K, half, 2, 16, 4, 0, 1>)
// foundry-lint: instance(linear_rows<F16, float, 8, 1, 4, 1, 1>)
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
    ushort lane [[thread_index_in_simdgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort simdgroups [[simdgroups_per_threadgroup]]) {
  const uint shift = ctz(args.split);  // a power of two: a division would take as long as a read from memory
  const uint team = simdgroup >> shift, part = simdgroup & (args.split - 1);
  const uint n0 = (group.x * (simdgroups >> shift) + team) * OUTS;
  const uint m0 = group.y * ROWS;

  device const typename Q::block* w_row[OUTS];
  for (int n = 0; n < OUTS; ++n)
    w_row[n] = weight + ulong(min(n0 + n, args.n - 1)) * args.row_blocks;
  uint x_row[ROWS];
  for (int m = 0; m < ROWS; ++m)
    x_row[m] = m0 + m == 0 ? 0 : row_offset(args.x, min(m0 + m, args.rows - 1));
  float sum[ROWS * OUTS], unused[ROWS];
  const PlainRows<T, VEC == 1 ? 1 : 8> rows = {x};
  const uint end = n0 < args.n ? args.k : 0;  // a team past the last output has nothing to read
  accumulate_k<Q, ROWS, VEC, OUTS, UNROLL, CHAINS>(w_row, rows, x_row, part * simd_width + lane, args.split, end, sum,
                                                   unused);
  const float total = team_sums(sum, args.split, part, partial, simdgroup, lane);
  const uint m = m0 + lane / OUTS, n = n0 + lane % OUTS;
  if (part == 0 && lane < ROWS * OUTS && m < args.rows && n < args.n)
    store_output(total, m, n, bias, residual, y, args);
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
