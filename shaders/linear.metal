// y = x W^T for a weight of any format: linear_rows for up to eight rows of x, linear_tiles for more. Sums are f32, the
// result is rounded once, after the epilogue. Which kernel serves which M is decided in csrc/ops/linear.cpp.
#include "linear.h"

#include "epilogue.h"
#include "gemv.h"

#include <metal_simdgroup_matrix>

using namespace metal;
using namespace foundry;

// Matrix-vector product for M rows at once: every chunk of W is read and unpacked once for all rows. A team of args.split
// simdgroups makes N neighbouring outputs (gemv.h). Rows beyond args.rows and outputs beyond args.n repeat the last valid
// one and are not stored.
// foundry-lint: instance(linear_rows<Q8_0, half, 4, 16, 4, 1, 1>)
// foundry-lint: instance(linear_rows<Q4_0, bfloat, 1, 8, 2, 2, 4>)
// foundry-lint: instance(linear_rows<F16, float, 8, 1, 4, 1, 1>)
template <typename Q, typename T, int M, int V, int N, int U, int P>
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
  const uint n0 = (group.x * (simdgroups >> shift) + team) * N;
  const uint m0 = group.y * M;

  device const typename Q::block* w_row[N];
  for (int n = 0; n < N; ++n)
    w_row[n] = weight + ulong(min(n0 + n, args.n - 1)) * args.row_blocks;
  uint x_row[M];
  for (int m = 0; m < M; ++m)
    x_row[m] = m0 + m == 0 ? 0 : row_offset(args.x, min(m0 + m, args.rows - 1));
  float sum[M * N], unused[M];
  const Plain<T, V == 1 ? 1 : 8> rows = {x};
  const uint end = n0 < args.n ? args.k : 0;  // a team past the last output has nothing to read
  walk<Q, M, V, N, U, P>(w_row, rows, x_row, part * simd_width + lane, args.split, end, sum, unused);
  const float total = team_sums(sum, args.split, part, partial, simdgroup, lane);
  const uint m = m0 + lane / N, n = n0 + lane % N;
  if (part == 0 && lane < M * N && m < args.rows && n < args.n)
    store_output(total, m, n, bias, residual, y, args);
}

// The element type of a tile: the dense type itself when both operands have it, else f32, so that staging never rounds.
template <typename Weight, typename T> struct Staged {
  using type = float;
};
template <typename T> struct Staged<Dense<T>, T> {
  using type = T;
};

// One chunk of a tile row, zero past the end of K.
template <typename Q, int V, typename S>
METAL_FUNC void stage(device const typename Q::block* row, uint k, uint end, threadgroup S* to) {
  float w[chunk];
  float d = 0.0f;
  for (int j = 0; j < chunk; ++j)
    w[j] = 0.0f;
  if (k < end) d = load_chunk<Q, V>(row, k, end, w);
  for (int j = 0; j < chunk; ++j)
    to[j] = S(d * w[j]);
}

template <int I, int J>
METAL_FUNC void add_runs(thread simdgroup_matrix<float, 8, 8> (&sum)[I][J],
                         thread simdgroup_matrix<float, 8, 8> (&run)[I][J]) {
  for (int i = 0; i < I; ++i)
    for (int j = 0; j < J; ++j) {
      for (int e = 0; e < 2; ++e)
        sum[i][j].thread_elements()[e] += run[i][j].thread_elements()[e];
      run[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
}

// Matrix product in tiles of BM x BN: a slab of x and an unpacked slab of W lie in threadgroup memory. Tile rows beyond
// the matrices repeat the last valid row; their products are never stored.
// foundry-lint: instance(linear_tiles<Q8_0, half, 8>)
// foundry-lint: instance(linear_tiles<BF16, bfloat, 1>)
template <typename Q, typename T, int V>
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
  using S = typename Staged<Q, T>::type;
  constexpr int BM = linear_bm, BN = linear_bn, BK = linear_bk;
  constexpr int LD = BK + 16 / sizeof(S);  // 16 bytes of padding against bank conflicts
  constexpr int slab_floats = (BM + BN) * LD * sizeof(S) / sizeof(float);
  constexpr int floats = slab_floats > BM * BN ? slab_floats : BM * BN;
  threadgroup float memory[floats];  // the slabs, and after the last of them the results
  threadgroup S* x_slab = (threadgroup S*)memory;
  threadgroup S* w_slab = x_slab + BM * LD;

  const uint m0 = group.y * BM, n0 = group.x * BN;
  const short sm = simdgroup / 2 * (BM / 2), sn = simdgroup % 2 * (BN / 2);  // this simdgroup's quarter
  // f32 products are summed in runs of a few slabs, then the runs: one long chain would round off some five times as much.
  constexpr bool in_runs = is_same_v<S, float>;
  simdgroup_matrix<float, 8, 8> sum[BM / 16][BN / 16], run[BM / 16][BN / 16];
  for (int i = 0; i < BM / 16; ++i)
    for (int j = 0; j < BN / 16; ++j)
      sum[i][j] = run[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);

  // Each thread stages the same chunk of a row of x and of some rows of W in every slab.
  constexpr int row_chunks = BK / chunk, w_step = linear_tile_threads / row_chunks;
  static_assert(w_step == BM && BN % w_step == 0, "one chunk of x and a whole number of chunks of W per thread");
  const uint r = tid / row_chunks, c = tid % row_chunks * chunk;
  device const T* x_row = x + row_offset(args.x, min(m0 + r, args.rows - 1));
  device const typename Q::block* w_row[BN / w_step];
  for (int i = 0; i < BN / w_step; ++i)
    w_row[i] = weight + ulong(min(n0 + r + i * w_step, args.n - 1)) * args.row_blocks;

  for (uint k0 = 0; k0 < args.k; k0 += BK) {
    stage<Dense<T>, V>(x_row, k0 + c, args.k, x_slab + r * LD + c);
    for (int i = 0; i < BN / w_step; ++i)
      stage<Q, V>(w_row[i], k0 + c, args.k, w_slab + (r + i * w_step) * LD + c);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int k = 0; k < BK; k += 8) {
      simdgroup_matrix<S, 8, 8> a[BM / 16], b[BN / 16];
      for (int i = 0; i < BM / 16; ++i)
        simdgroup_load(a[i], x_slab + (sm + i * 8) * LD + k, LD);
      for (int j = 0; j < BN / 16; ++j)
        simdgroup_load(b[j], w_slab + (sn + j * 8) * LD + k, LD, ulong2(0, 0), true);
      for (int i = 0; i < BM / 16; ++i)
        for (int j = 0; j < BN / 16; ++j)
          simdgroup_multiply_accumulate(run[i][j], a[i], b[j], run[i][j]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (in_runs && (k0 / BK + 1) % linear_run_slabs == 0)
      add_runs(sum, run);
  }
  add_runs(sum, run);

  for (int i = 0; i < BM / 16; ++i)
    for (int j = 0; j < BN / 16; ++j)
      simdgroup_store(sum[i][j], memory + (sm + i * 8) * BN + sn + j * 8, BN);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = tid; i < BM * BN; i += linear_tile_threads) {
    const uint m = m0 + i / BN, n = n0 + i % BN;
    if (m < args.rows && n < args.n) store_output(memory[i], m, n, bias, residual, y, args);
  }
}
