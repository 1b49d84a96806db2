// RMSNorm of rows, one threadgroup a row: y = norm(x) * w (+ residual) (* scale).
// Sums are f32; what is rounded between the steps is the Kind's business.
#include "norm/rms_norm.h"

#include "norm/norm_kinds.h"
#include "common/reduce.h"
#include "common/vec.h"

using namespace metal;
using namespace foundry;

constant bool has_residual [[function_constant(FC_RMS_NORM_RESIDUAL)]];
constant bool has_scale [[function_constant(FC_RMS_NORM_SCALE)]];

// v becomes the normed and weighted values.
template <typename T, typename Kind, int VEC>
METAL_FUNC void weigh(thread float (&v)[VEC], float inverse, device const T* weight) {
  float w[VEC];
  load(weight, w);
  for (int j = 0; j < VEC; ++j)
    v[j] = Kind::template apply<T>(v[j] * inverse, w[j]);
}

template <typename T, int VEC> METAL_FUNC void add_to(thread float (&v)[VEC], device const T* residual) {
  float r[VEC];
  load(residual, r);
  for (int j = 0; j < VEC; ++j)
    v[j] += r[j];
}

template <typename T, int VEC> METAL_FUNC void scale_by(thread float (&v)[VEC], float scale) {
  for (int j = 0; j < VEC; ++j)
    v[j] = float(T(v[j])) * scale;
}

METAL_FUNC float inverse_rms(float sum_of_squares, constant RmsNormArgs& args) {
  return rsqrt(sum_of_squares / float(args.hidden) + args.eps);
}

// Vectors of a row that a thread keeps in registers; of longer rows it reads the others again.
constant constexpr int cached_vectors = rms_norm_per_thread_long / 8;

// foundry-lint: instance(rms_norm<half, Llama, 8>)
// foundry-lint: instance(rms_norm<float, Olmo, 1>)
template <typename T, typename Kind, int VEC>
[[kernel]] void rms_norm(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1)]],
    device const T* residual [[buffer(2), function_constant(has_residual)]],
    device const T* scale [[buffer(3), function_constant(has_scale)]],
    device T* y [[buffer(4)]],
    constant RmsNormArgs& args [[buffer(5)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[32];
  device const T* x_row = x + row_offset(args.x, row);
  const uint step = threads * VEC;

  float v[cached_vectors][VEC], sum = 0.0f;
  for (int n = 0; n < cached_vectors; ++n) {
    const uint i = tid * VEC + n * step;
    if (i < args.hidden) {
      load(x_row + i, v[n]);
      for (int j = 0; j < VEC; ++j)
        sum = fma(v[n][j], v[n][j], sum);
    }
  }
  for (uint i = tid * VEC + cached_vectors * step; i < args.hidden; i += step) {
    float more[VEC];
    load(x_row + i, more);
    for (int j = 0; j < VEC; ++j)
      sum = fma(more[j], more[j], sum);
  }
  const float inverse = inverse_rms(threadgroup_sum(sum, partial, lane, simdgroup, simdgroups), args);

  device T* y_row = y + row * args.hidden;
  device const T* r_row = has_residual ? residual + row_offset(args.residual, row) : nullptr;
  for (int n = 0; n < cached_vectors; ++n) {
    const uint i = tid * VEC + n * step;
    if (i < args.hidden) {
      weigh<T, Kind>(v[n], inverse, weight + i);
      if (has_residual)
        add_to<T>(v[n], r_row + i);
      if (has_scale)
        scale_by<T>(v[n], float(scale[0]));
      store(y_row + i, v[n]);
    }
  }
  for (uint i = tid * VEC + cached_vectors * step; i < args.hidden; i += step) {
    float more[VEC];
    load(x_row + i, more);
    weigh<T, Kind>(more, inverse, weight + i);
    if (has_residual)
      add_to<T>(more, r_row + i);
    if (has_scale)
      scale_by<T>(more, float(scale[0]));
    store(y_row + i, more);
  }
}
