// y = x W^T for a weight of any format and many rows of x of 16 bits, by the matrix units of M5 and later GPUs, which
// Metal 4.0 has behind matmul2d. Tiles of x and of W, unpacked and rounded to x's type as a dense model has it, lie in
// threadgroup memory; sums are f32. No layout of theirs is taken for granted. Whether a GPU's products are good enough
// is asked of it first: csrc/core/tensors.cpp.
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>

#include "linear/linear.h"

#include "linear/epilogue.h"
#include "linear/tiles.h"

using namespace metal;
using namespace mpp::tensor_ops;
using namespace foundry;

// Rows of a tile beyond the matrices repeat the last valid row; their products are never stored.
// foundry-lint: instance(linear_tensors<Q8_0, half, 8>)
// foundry-lint: instance(linear_tensors<Q4_K, bfloat, 1>)
// foundry-lint: instance(linear_tensors<F16, half, 8>)
// foundry-lint: instance(linear_tensors<BF16, bfloat, 1>)
template <typename Q, typename T, int VEC>
[[kernel]] void linear_tensors(
    device const typename Q::block* weight [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device const T* residual [[buffer(3)]],
    device T* y [[buffer(4)]],
    constant LinearArgs& args [[buffer(5)]],
    uint2 group [[threadgroup_position_in_grid]],
    ushort tid [[thread_index_in_threadgroup]]) {
  using Operand = tensor<threadgroup T, dextents<int32_t, 2>, tensor_inline>;
  constexpr int BM = linear_tensors_bm, BN = linear_tensors_bn, BK = linear_tensors_bk;
  constexpr uint row_chunks = BK / chunk, turn = linear_tensors_simdgroups * simd_width / row_chunks; // rows of a turn
  constexpr int x_turns = BM / turn, w_turns = BN / turn;
  static_assert(x_turns * turn == BM && w_turns * turn == BN, "whole turns");
  threadgroup uint4 memory[(BM + BN) * BK * sizeof(T) / sizeof(uint4)];
  threadgroup T* const x_slab = (threadgroup T*)memory;
  threadgroup T* const w_slab = x_slab + BM * BK;
  Operand x_tile = Operand(x_slab, dextents<int32_t, 2>(BK, BM));
  Operand w_tile = Operand(w_slab, dextents<int32_t, 2>(BK, BN));

  const uint m0 = group.y * BM, n0 = group.x * BN, r = tid / row_chunks, c = tid % row_chunks * chunk;
  device const T* x_row[x_turns];
  for (int i = 0; i < x_turns; ++i)
    x_row[i] = x + row_offset(args.x, min(m0 + r + i * turn, args.rows - 1));
  device const typename Q::block* w_row[w_turns];
  for (int i = 0; i < w_turns; ++i)
    w_row[i] = weight + ulong(min(n0 + r + i * turn, args.n - 1)) * args.row_blocks;

  constexpr auto descriptor =
      matmul2d_descriptor(BM, BN, BK, false, true, false, matmul2d_descriptor::mode::multiply_accumulate);
  matmul2d<descriptor, execution_simdgroups<linear_tensors_simdgroups>> product;
  auto sum = product.template get_destination_cooperative_tensor<Operand, Operand, float>();
#pragma unroll
  for (ushort i = 0; i < sum.get_capacity(); ++i)
    if (sum.is_valid_element(i))
      sum[i] = 0.0f;
  for (uint k0 = 0; k0 < args.k; k0 += BK) {
    for (int i = 0; i < x_turns; ++i)
      stage<Dense<T>, VEC>(x_row[i], k0 + c, args.k, x_slab + (r + i * turn) * BK + c);
    for (int i = 0; i < w_turns; ++i)
      stage<Q, VEC>(w_row[i], k0 + c, args.k, w_slab + (r + i * turn) * BK + c);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    product.run(x_tile, w_tile, sum);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }

#pragma unroll
  for (ushort i = 0; i < sum.get_capacity(); ++i) {
    const auto at = sum.get_multidimensional_index(i); // its column, then its row
    const uint m = m0 + at[1], n = n0 + at[0];
    if (sum.is_valid_element(i) && m < args.rows && n < args.n)
      store_output(float(sum[i]), m, n, bias, residual, y, args);
  }
}
