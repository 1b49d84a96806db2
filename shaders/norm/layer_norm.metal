// LayerNorm of rows, one threadgroup a row: y = (x - mean) / sqrt(variance + eps) * (offset + weight) + bias, in f32,
// rounded once. Squares are of differences from the mean: those of x itself would cancel where the mean is large. A row
// is read three times, by the same thread each time: caches have it.
#include "norm/layer_norm.h"

#include "common/reduce.h"
#include "common/vec.h"

using namespace metal;
using namespace foundry;

constant bool has_weight [[function_constant(FC_LAYER_NORM_WEIGHT)]];
constant bool has_bias [[function_constant(FC_LAYER_NORM_BIAS)]];

// foundry-lint: instance(layer_norm<half, 8>)
// foundry-lint: instance(layer_norm<float, 1>)
template <typename T, int VEC>
[[kernel]] void layer_norm(
    device const T* x [[buffer(0)]],
    device const T* weight [[buffer(1), function_constant(has_weight)]],
    device const T* bias [[buffer(2), function_constant(has_bias)]],
    device T* y [[buffer(3)]],
    constant LayerNormArgs& args [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float sums[32], squares[32];
  device const T* x_row = x + row_offset(args.x, row);
  device T* y_row = y + row * args.hidden;
  const uint first = tid * VEC, step = threads * VEC;
  const float n = float(args.hidden);

  float v[VEC], sum = 0.0f, square = 0.0f;
  for (uint i = first; i < args.hidden; i += step) {
    load(x_row + i, v);
    for (int j = 0; j < VEC; ++j)
      sum += v[j];
  }
  const float mean = threadgroup_sum(sum, sums, lane, simdgroup, simdgroups) / n;
  for (uint i = first; i < args.hidden; i += step) {
    load(x_row + i, v);
    for (int j = 0; j < VEC; ++j)
      square = fma(v[j] - mean, v[j] - mean, square);
  }
  const float variance = threadgroup_sum(square, squares, lane, simdgroup, simdgroups) / n;
  const float inverse = rsqrt(variance + args.eps);
  for (uint i = first; i < args.hidden; i += step) {
    float w[VEC], b[VEC];
    load(x_row + i, v);
    if (has_weight)
      load(weight + i, w);
    if (has_bias)
      load(bias + i, b);
    for (int j = 0; j < VEC; ++j) {
      v[j] = (v[j] - mean) * inverse;
      if (has_weight)
        v[j] *= args.offset + w[j];
      if (has_bias)
        v[j] += b[j];
    }
    store(y_row + i, v);
  }
}
