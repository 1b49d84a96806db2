// A product of 16x32 matrices by two simdgroups, of operands with a row and a column too few.
#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>
using namespace metal;
using namespace mpp::tensor_ops;

template <typename T> using Operand = tensor<threadgroup T, dextents<int32_t, 2>, tensor_inline>;

// y: 16 x 32 and, for each thread and place, whether it is one: columns, rows, valid.
template <typename T, bool LEFT, bool RIGHT, bool ADD>
kernel void product(device const T* a [[buffer(0)]], device const T* b [[buffer(1)]], device float* y [[buffer(2)]],
                    device int* places [[buffer(3)]], ushort tid [[thread_index_in_threadgroup]]) {
  constexpr int M = 16, N = 32, K = 24;
  threadgroup T left[M * K], right[K * N];
  for (int i = tid; i < M * K; i += 64) left[i] = a[i];
  for (int i = tid; i < K * N; i += 64) right[i] = b[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  auto x = Operand<T>(left, LEFT ? dextents<int32_t, 2>(M, K - 1) : dextents<int32_t, 2>(K, M - 1));
  auto w = Operand<T>(right, RIGHT ? dextents<int32_t, 2>(K, N - 1) : dextents<int32_t, 2>(N, K));
  constexpr auto descriptor = matmul2d_descriptor(
      M, N, K, LEFT, RIGHT, false, ADD ? matmul2d_descriptor::mode::multiply_accumulate : matmul2d_descriptor::mode::multiply);
  matmul2d<descriptor, execution_simdgroups<2>> op;
  auto sum = op.template get_destination_cooperative_tensor<Operand<T>, Operand<T>, float>();
  if (ADD)
    for (ushort i = 0; i < sum.get_capacity(); ++i) if (sum.is_valid_element(i)) sum[i] = 0.5f;
  for (int turn = 0; turn < 2; ++turn) op.run(x, w, sum);
  for (ushort i = 0; i < sum.get_capacity(); ++i) {
    const auto at = sum.get_multidimensional_index(i);
    const bool valid = sum.is_valid_element(i);
    places[3 * (tid * 12 + i)] = at[0];
    places[3 * (tid * 12 + i) + 1] = at[1];
    places[3 * (tid * 12 + i) + 2] = valid;
    if (valid) y[at[1] * N + at[0]] = sum[i];
  }
}
#define PRODUCT(name, T, left, right, add)                                                                             \
  template [[host_name(name)]] kernel decltype(product<T, left, right, add>) product<T, left, right, add>;
PRODUCT("plain", half, false, false, false)
PRODUCT("turned", half, true, true, true)
PRODUCT("right", bfloat, false, true, true)

kernel void too_few(device float* y [[buffer(0)]]) {
  threadgroup half memory[32 * 32];
  auto x = Operand<half>(memory, dextents<int32_t, 2>(32, 32));
  matmul2d<matmul2d_descriptor(32, 32, 32, false, true), execution_simdgroups<4>> op;
  auto sum = op.get_destination_cooperative_tensor<Operand<half>, Operand<half>, float>();
  op.run(x, x, sum);
  y[0] = sum[0];
}
