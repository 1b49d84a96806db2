// The gradient of y = x W^T with respect to x: grad W, for a weight of any format that stays as it is. Sums are f32, the
// result is rounded once.
#include "linear/linear_backward.h"

#include "linear/tiles.h"

using namespace metal;
using namespace foundry;

// A product in tiles of linear_bm rows x linear_bn columns of W, as in tiles.h; but W is read across its rows: a slab of
// linear_bk of them, unpacked into threadgroup memory, is the right factor as it lies there.
// foundry-lint: instance(linear_backward_input<Q8_0, half, 8>)
// foundry-lint: instance(linear_backward_input<BF16, bfloat, 1>)
template <typename Q, typename T, int VEC>
[[kernel]] void linear_backward_input(
    device const typename Q::block* weight [[buffer(0)]],
    device const T* grad [[buffer(1)]],
    device T* x_grad [[buffer(2)]],
    constant LinearBackwardArgs& args [[buffer(3)]],
    uint2 group [[threadgroup_position_in_grid]],
    ushort tid [[thread_index_in_threadgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  using S = conditional_t<is_same_v<Q, Dense<T>>, T, float>;  // gradients are not rounded once more
  constexpr int BM = linear_bm, BN = linear_bk, BK = linear_bn, padding = 16 / sizeof(S);
  constexpr int grad_width = BN + padding, w_width = BK + padding;
  constexpr int slab_floats = (BM * grad_width + BN * w_width) * sizeof(S) / sizeof(float);
  constexpr int grad_chunks = BN / chunk, w_chunks = BK / chunk, w_step = linear_tile_threads / w_chunks;
  static_assert(linear_tile_threads == BM * grad_chunks && BN % w_step == 0, "whole chunks for each thread");
  threadgroup float memory[slab_floats > BM * BK ? slab_floats : BM * BK];  // results take the place of the slabs
  threadgroup S* grad_slab = (threadgroup S*)memory;
  threadgroup S* w_slab = grad_slab + BM * grad_width;
  const uint m0 = group.y * BM, k0 = group.x * BK;
  const uint r = tid / grad_chunks, c = tid % grad_chunks * chunk;
  const uint w_row = tid / w_chunks, w_column = tid % w_chunks * chunk;
  device const T* grad_row = grad + row_offset(args.grad, min(m0 + r, args.rows - 1));

  const short sm = simdgroup / 2 * (BM / 2), sk = simdgroup % 2 * (BK / 2);  // this simdgroup's quarter
  simdgroup_matrix<float, 8, 8> sum[BM / 16][BK / 16], run[BM / 16][BK / 16];
  for (int i = 0; i < BM / 16; ++i)
    for (int j = 0; j < BK / 16; ++j) {
      sum[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      run[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  for (uint n0 = 0; n0 < args.n; n0 += BN) {
    stage<Dense<T>, VEC>(grad_row, n0 + c, args.n, grad_slab + r * grad_width + c);
    for (uint i = w_row; i < BN; i += w_step) {
      const bool inside = n0 + i < args.n;  // rows beyond the last are zeros: the last one again could be infinite
      device const typename Q::block* row = weight + ulong(inside ? n0 + i : 0) * args.row_blocks;
      stage<Q, VEC>(row, inside ? k0 + w_column : args.k, args.k, w_slab + i * w_width + w_column);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int n = 0; n < BN; n += 8) {
      simdgroup_matrix<S, 8, 8> a[BM / 16], b[BK / 16];
      for (int i = 0; i < BM / 16; ++i)
        simdgroup_load(a[i], grad_slab + (sm + i * 8) * grad_width + n, grad_width);
      for (int j = 0; j < BK / 16; ++j)
        simdgroup_load(b[j], w_slab + n * w_width + sk + j * 8, w_width);
      for (int i = 0; i < BM / 16; ++i)
        for (int j = 0; j < BK / 16; ++j)
          simdgroup_multiply_accumulate(run[i][j], a[i], b[j], run[i][j]);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if ((n0 / BN + 1) % linear_run_slabs == 0)
      add_runs(sum, run);
  }
  add_runs(sum, run);

  for (int i = 0; i < BM / 16; ++i)
    for (int j = 0; j < BK / 16; ++j)
      simdgroup_store(sum[i][j], memory + (sm + i * 8) * BK + sk + j * 8, BK);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (int i = tid; i < BM * BK; i += linear_tile_threads) {
    const uint m = m0 + i / BK, k = k0 + i % BK;
    if (m < args.rows && k < args.k)
      x_grad[m * args.k + k] = T(memory[i]);
  }
}
