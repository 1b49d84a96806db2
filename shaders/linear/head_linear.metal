// Products of a token's heads with a matrix for each head: y[t, h] = W[h] x[t, h]. For few tokens: a token's result does
// not depend on the tokens that come with it. Sums are f32 and rounded once.
#include "linear/head_linear.h"

#include "common/vec.h"

using namespace metal;
using namespace foundry;

// Rows of W[h] are contiguous: a simdgroup has some outputs, a lane every 32nd vector of a row.
// foundry-lint: instance(head_linear_rows<half, 8>)
// foundry-lint: instance(head_linear_rows<float, 1>)
template <typename T, int VEC>
[[kernel]] void head_linear_rows(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device T* y [[buffer(2)]],
    constant HeadLinearArgs& args [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  constexpr int OUTS = head_linear_outputs;
  const uint token = group.y, head = group.z;
  const uint n0 = (group.x * head_linear_simdgroups + simdgroup) * OUTS;
  device const T* own = x + token * args.x_token + head * args.x_head;
  device const T* row[OUTS];
  for (uint n = 0; n < OUTS; ++n)
    row[n] = weight + ulong(head) * args.w_head + min(n0 + n, args.n - 1) * args.stride;
  float sum[OUTS];
  for (int n = 0; n < OUTS; ++n)
    sum[n] = 0.0f;
  for (uint k = lane * VEC; k < args.k; k += simd_width * VEC) {
    float a[VEC], w[VEC];
    load(own + k, a);
    for (int n = 0; n < OUTS; ++n) {
      load(row[n] + k, w);
      float part = 0.0f;  // short sums first
      for (int j = 0; j < VEC; ++j)
        part = fma(a[j], w[j], part);
      sum[n] += part;
    }
  }
  for (uint n = 0; n < OUTS; ++n) {
    const float whole = simd_sum(sum[n]);
    if (lane == 0 && n0 + n < args.n)
      y[(token * args.heads + head) * args.n + n0 + n] = T(whole);
  }
}

// Columns of W[h] are contiguous: a lane has VEC outputs, and the simdgroups share the columns.
// foundry-lint: instance(head_linear_columns<bfloat, 8>)
// foundry-lint: instance(head_linear_columns<float, 1>)
template <typename T, int VEC>
[[kernel]] void head_linear_columns(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device T* y [[buffer(2)]],
    constant HeadLinearArgs& args [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float parts[head_linear_simdgroups][simd_width * VEC];
  const uint token = group.y, head = group.z, n0 = (group.x * simd_width + lane) * VEC;
  device const T* own = x + token * args.x_token + head * args.x_head;
  device const T* column = weight + ulong(head) * args.w_head + min(n0, args.n - VEC);
  float sum[VEC];
  for (int j = 0; j < VEC; ++j)
    sum[j] = 0.0f;
  for (uint k = simdgroup; k < args.k; k += head_linear_simdgroups) {
    const float a = float(own[k]);
    float w[VEC];
    load(column + k * args.stride, w);
    for (int j = 0; j < VEC; ++j)
      sum[j] = fma(a, w[j], sum[j]);
  }
  for (int j = 0; j < VEC; ++j)
    parts[simdgroup][lane * VEC + j] = sum[j];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = simdgroup * simd_width + lane; i < simd_width * VEC; i += head_linear_simdgroups * simd_width) {
    const uint n = group.x * simd_width * VEC + i;
    float whole = 0.0f;
    for (uint s = 0; s < head_linear_simdgroups; ++s)
      whole += parts[s][i];
    if (n < args.n)
      y[(token * args.heads + head) * args.n + n] = T(whole);
  }
}
