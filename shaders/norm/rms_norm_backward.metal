// The gradients of RMSNorm, y = x r w with r = 1 / rms(x). Sums are f32, results are rounded once; what the forward
// pass rounds between its steps counts as exact.
#include "norm/rms_norm_backward.h"

#include "norm/norm_kinds.h"
#include "common/reduce.h"
#include "common/vec.h"

using namespace metal;
using namespace foundry;

// Vectors of a row that a thread keeps in registers; of longer rows it reads the others again.
constant constexpr int kept_vectors = rms_norm_per_thread_long / 8;

// x of a row, and the gradient of x r.
template <typename Kind, typename T, int VEC>
METAL_FUNC void read_both(
    device const T* x, device const T* grad, device const T* weight, thread float (&v)[VEC], thread float (&g)[VEC]) {
  float w[VEC];
  load(x, v);
  load(grad, g);
  load(weight, w);
  for (int j = 0; j < VEC; ++j)
    g[j] *= Kind::factor(w[j]);
}

template <int VEC>
METAL_FUNC void add_up(thread const float (&v)[VEC], thread const float (&g)[VEC], thread float2& sums) {
  for (int j = 0; j < VEC; ++j) {
    sums.x = fma(v[j], v[j], sums.x);
    sums.y = fma(v[j], g[j], sums.y);
  }
}

// One threadgroup a row: x's gradient is r (g - x r mean(g x r)) with g = grad w. Each row's r is left for the weight's.
// foundry-lint: instance(rms_norm_backward<half, Llama, 8>)
// foundry-lint: instance(rms_norm_backward<float, Gemma, 1>)
template <typename T, typename Kind, int VEC>
[[kernel]] void rms_norm_backward(
    device const T* grad [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device T* x_grad [[buffer(3)]],
    device float* inverse_rms [[buffer(4)]],
    constant RmsNormBackwardArgs& args [[buffer(5)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float squares_of[32], products_of[32];
  device const T* x_row = x + row_offset(args.x, row);
  device const T* grad_row = grad + row_offset(args.grad, row);
  const uint step = threads * VEC;

  float v[kept_vectors][VEC], g[kept_vectors][VEC];
  float2 sums = 0.0f;
  for (int n = 0; n < kept_vectors; ++n) {
    const uint i = tid * VEC + n * step;
    if (i < args.hidden) {
      read_both<Kind>(x_row + i, grad_row + i, weight + i, v[n], g[n]);
      add_up(v[n], g[n], sums);
    }
  }
  for (uint i = tid * VEC + kept_vectors * step; i < args.hidden; i += step) {
    float more[VEC], more_g[VEC];
    read_both<Kind>(x_row + i, grad_row + i, weight + i, more, more_g);
    add_up(more, more_g, sums);
  }
  const float squares = threadgroup_sum(sums.x, squares_of, lane, simdgroup, simdgroups);
  const float products = threadgroup_sum(sums.y, products_of, lane, simdgroup, simdgroups);
  const float r = rsqrt(squares / float(args.hidden) + args.eps);
  const float mean = products / float(args.hidden) * r;
  if (tid == 0)
    inverse_rms[row] = r;

  device T* out = x_grad + row * args.hidden;
  for (int n = 0; n < kept_vectors; ++n) {
    const uint i = tid * VEC + n * step;
    if (i < args.hidden) {
      for (int j = 0; j < VEC; ++j)
        g[n][j] = r * (g[n][j] - v[n][j] * r * mean);
      store(out + i, g[n]);
    }
  }
  for (uint i = tid * VEC + kept_vectors * step; i < args.hidden; i += step) {
    float more[VEC], more_g[VEC];
    read_both<Kind>(x_row + i, grad_row + i, weight + i, more, more_g);
    for (int j = 0; j < VEC; ++j)
      more_g[j] = r * (more_g[j] - more[j] * r * mean);
    store(out + i, more_g);
  }
}

// The weight's gradient, the sum of grad x r over rows: a threadgroup has simd_width columns, a lane one of them, and
// each simdgroup every so many rows.
// foundry-lint: instance(rms_norm_backward_weight<half>)
// foundry-lint: instance(rms_norm_backward_weight<float>)
template <typename T>
[[kernel]] void rms_norm_backward_weight(
    device const T* grad [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device const float* inverse_rms [[buffer(2)]],
    device T* weight_grad [[buffer(3)]],
    constant RmsNormWeightArgs& args [[buffer(4)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float partial[rms_norm_weight_simdgroups][simd_width];
  const uint column = group * simd_width + lane;
  float sum = 0.0f, run = 0.0f;
  uint n = 0;
  if (column < args.hidden)
    for (uint row = simdgroup; row < args.rows; row += rms_norm_weight_simdgroups) {
      const float xr = float(x[row_offset(args.x, row) + column]) * inverse_rms[row];
      run = fma(float(grad[row_offset(args.grad, row) + column]), xr, run);
      if (++n % rms_norm_weight_run == 0) {
        sum += run;
        run = 0.0f;
      }
    }
  partial[simdgroup][lane] = sum + run;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0 && column < args.hidden) {
    float total = 0.0f;
    for (uint s = 0; s < rms_norm_weight_simdgroups; ++s)
      total += partial[s][lane];
    weight_grad[column] = T(total);
  }
}
