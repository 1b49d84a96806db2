// RMSNorm of rows, one threadgroup a row: y = norm(x) * w (+ residual), and the variant that first adds the residual.
// Sums are f32; what is rounded between the steps is the Kind's business.
#include "rms_norm.h"

#include "reduce.h"
#include "vec.h"

using namespace metal;
using namespace foundry;

constant bool has_residual [[function_constant(FC_RMS_NORM_RESIDUAL)]];

// The three ways in which Hugging Face models apply the weight. They differ in what is rounded to T first.
struct Llama {
  template <typename T> static float apply(float normed, float w) { return w * float(T(normed)); }
};
struct Olmo {
  template <typename T> static float apply(float normed, float w) { return w * normed; }
};
struct Gemma {
  template <typename T> static float apply(float normed, float w) { return (1.0f + w) * normed; }
};

METAL_FUNC float inverse_rms(float sum_of_squares, constant RmsNormArgs& args) {
  return rsqrt(sum_of_squares / float(args.hidden) + args.eps);
}

// foundry-lint: instance(rms_norm<half, Llama, 4>)
// foundry-lint: instance(rms_norm<float, Olmo, 1>)
template <typename T, typename Kind, int V>
[[kernel]] void rms_norm(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* residual [[buffer(2), function_constant(has_residual)]],
    device T* y [[buffer(3)]],
    constant RmsNormArgs& args [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[32];
  device const T* x_row = x + row_offset(args.x, row);

  float sum = 0.0f;
  for (uint i = tid * V; i < args.hidden; i += threads * V) {
    float v[V];
    load(x_row + i, v);
    for (int j = 0; j < V; ++j)
      sum = fma(v[j], v[j], sum);
  }
  const float inverse = inverse_rms(threadgroup_sum(sum, partial, lane, simdgroup, simdgroups), args);

  device T* y_row = y + row * args.hidden;
  for (uint i = tid * V; i < args.hidden; i += threads * V) {
    float v[V], w[V], r[V];
    load(x_row + i, v);
    load(weight + i, w);
    for (int j = 0; j < V; ++j)
      v[j] = Kind::template apply<T>(v[j] * inverse, w[j]);
    if (has_residual) {
      load(residual + row_offset(args.residual, row) + i, r);
      for (int j = 0; j < V; ++j)
        v[j] += r[j];
    }
    store(y_row + i, v);
  }
}

// h = residual + scale * x, rounded to T; y = norm(h) * w, computed from the rounded h as a model does that stores it.
// foundry-lint: instance(add_rms_norm<bfloat, Gemma, 1>)
template <typename T, typename Kind, int V>
[[kernel]] void add_rms_norm(
    device const T* x [[buffer(0)]],
    device const T* residual [[buffer(1)]],
    device const T* weight [[buffer(2)]],
    device T* y [[buffer(3)]],
    device T* h [[buffer(4)]],
    constant RmsNormArgs& args [[buffer(5)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[32];
  device const T* x_row = x + row_offset(args.x, row);
  device const T* residual_row = residual + row_offset(args.residual, row);
  device T* h_row = h + row * args.hidden;

  float sum = 0.0f;
  for (uint i = tid * V; i < args.hidden; i += threads * V) {
    float v[V], r[V];
    load(x_row + i, v);
    load(residual_row + i, r);
    for (int j = 0; j < V; ++j) {
      v[j] = float(T(fma(args.scale, v[j], r[j])));
      sum = fma(v[j], v[j], sum);
    }
    store(h_row + i, v);
  }
  const float inverse = inverse_rms(threadgroup_sum(sum, partial, lane, simdgroup, simdgroups), args);

  device T* y_row = y + row * args.hidden;
  for (uint i = tid * V; i < args.hidden; i += threads * V) {  // each thread reads back what it wrote itself
    float v[V], w[V];
    load((device const T*)h_row + i, v);
    load(weight + i, w);
    for (int j = 0; j < V; ++j)
      v[j] = Kind::template apply<T>(v[j] * inverse, w[j]);
    store(y_row + i, v);
  }
}
