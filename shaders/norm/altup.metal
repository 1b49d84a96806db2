// Alternating updates (https://arxiv.org/abs/2301.13310): a token has several residual streams, one of which passes the
// layers. Before a layer all are predicted from each other, behind it all are corrected, with coefficients that a small
// router makes of the active stream. All in f32, rounded once. One threadgroup a token.
#include "norm/altup.h"

#include "common/reduce.h"

using namespace metal;
using namespace foundry;

constant bool has_gain [[function_constant(FC_ALTUP_SCALE)]];
constant bool has_onto [[function_constant(FC_ALTUP_ONTO)]];

// tanh(scale * normed x . router): one number for each stream, the same bits in every thread.
template <typename T, int N>
METAL_FUNC void modalities(
    thread float (&m)[N],
    device const T* x,
    device const T* norm,
    device const T* router,
    constant AltupArgs& args,
    threadgroup float* partial, // of N + 1 sums, 32 each
    uint tid,
    uint threads,
    uint lane,
    uint simdgroup,
    uint simdgroups) {
  float square = 0.0f;
  for (int k = 0; k < N; ++k)
    m[k] = 0.0f;
  for (uint i = tid; i < args.hidden; i += threads) {
    const float v = float(x[i]), w = v * float(norm[i]);
    square = fma(v, v, square);
    for (int k = 0; k < N; ++k)
      m[k] = fma(w, float(router[k * args.hidden + i]), m[k]);
  }
  const float sum = threadgroup_sum(square, partial, lane, simdgroup, simdgroups);
  const float inverse = rsqrt(sum / float(args.hidden) + args.eps) * args.scale;
  for (int k = 0; k < N; ++k)
    m[k] = precise::tanh(inverse * threadgroup_sum(m[k], partial + (k + 1) * 32, lane, simdgroup, simdgroups));
}

// Row r of coefficients [.., N] times the modalities.
template <typename T, int N> METAL_FUNC float coefficient(device const T* coefs, int r, thread const float (&m)[N]) {
  float sum = 0.0f;
  for (int k = 0; k < N; ++k)
    sum = fma(float(coefs[r * N + k]), m[k], sum);
  return sum;
}

// y[c] = x[c] + sum over q of coefficient (c, q) * x[q].
// foundry-lint: instance(altup_predict<half, 4>)
// foundry-lint: instance(altup_predict<float, 2>)
template <typename T, int N>
[[kernel]] void altup_predict(
    device const T* x [[buffer(0)]],      // [N, tokens, hidden]
    device const T* norm [[buffer(1)]],   // [hidden]
    device const T* router [[buffer(2)]], // [N, hidden]
    device const T* coefs [[buffer(3)]],  // [N * N, N]
    device T* y [[buffer(4)]],            // as x
    constant AltupArgs& args [[buffer(5)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[(N + 1) * 32];
  const uint stream = args.tokens * args.hidden, first = row * args.hidden;
  float m[N], c[N * N];
  modalities<T, N>(m, x + args.active * stream + first, norm, router, args, partial, tid, threads, lane, simdgroup,
                   simdgroups);
  for (int r = 0; r < N * N; ++r)
    c[r] = coefficient<T, N>(coefs, r, m);
  for (uint i = first + tid; i < first + args.hidden; i += threads) {
    float v[N];
    for (int q = 0; q < N; ++q)
      v[q] = float(x[q * stream + i]);
    for (int p = 0; p < N; ++p) {
      float sum = v[p];
      for (int q = 0; q < N; ++q)
        sum = fma(c[p * N + q], v[q], sum);
      y[p * stream + i] = T(sum);
    }
  }
}

// y[c] = x[c] + (1 + coefficient c) * (activated - x[active]); own = y[active] * scale.
// foundry-lint: instance(altup_correct<half, 4>)
// foundry-lint: instance(altup_correct<float, 2>)
template <typename T, int N>
[[kernel]] void altup_correct(
    device const T* x [[buffer(0)]],         // [N, tokens, hidden], as predicted
    device const T* activated [[buffer(1)]], // [tokens, hidden], behind the layer
    device const T* norm [[buffer(2)]],
    device const T* router [[buffer(3)]],
    device const T* coefs [[buffer(4)]], // [N, N]
    device const T* scale [[buffer(5), function_constant(has_gain)]],
    device T* y [[buffer(6)]],
    device T* own [[buffer(7)]],
    constant AltupArgs& args [[buffer(8)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[(N + 1) * 32];
  const uint stream = args.tokens * args.hidden, first = row * args.hidden;
  float m[N], c[N];
  modalities<T, N>(m, activated + first, norm, router, args, partial, tid, threads, lane, simdgroup, simdgroups);
  for (int r = 0; r < N; ++r)
    c[r] = 1.0f + coefficient<T, N>(coefs, r, m);
  for (uint i = tid; i < args.hidden; i += threads) {
    const float change = float(activated[first + i]) - float(x[args.active * stream + first + i]);
    for (int p = 0; p < N; ++p) {
      const float v = fma(c[p], change, float(x[p * stream + first + i]));
      y[p * stream + first + i] = T(v);
      if (uint(p) == args.active)
        own[first + i] = T(has_gain ? float(T(v)) * float(scale[i]) : v);
    }
  }
}

// y[0] = x[0]; the other streams plus the norm of one row.
// foundry-lint: instance(altup_add<half>)
template <typename T>
[[kernel]] void altup_add(
    device const T* x [[buffer(0)]],     // [streams, tokens, hidden]
    device const T* added [[buffer(1)]], // [tokens, hidden]
    device const T* norm [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant AltupArgs& args [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[32];
  const uint stream = args.tokens * args.hidden, first = row * args.hidden;
  float square = 0.0f;
  for (uint i = tid; i < args.hidden; i += threads)
    square = fma(float(added[first + i]), float(added[first + i]), square);
  const float sum = threadgroup_sum(square, partial, lane, simdgroup, simdgroups);
  const float inverse = rsqrt(sum / float(args.hidden) + args.eps);
  for (uint i = tid; i < args.hidden; i += threads) {
    const float v = float(added[first + i]) * inverse * float(norm[i]);
    y[first + i] = x[first + i];
    for (uint p = 1; p < args.streams; ++p)
      y[p * stream + first + i] = T(float(x[p * stream + first + i]) + v);
  }
}

// y = scale * (onto + x, made as long as `like`): by the roots of the mean squares.
// foundry-lint: instance(altup_match<half>)
template <typename T>
[[kernel]] void altup_match(
    device const T* x [[buffer(0)]], // rows of `hidden` elements
    device const T* like [[buffer(1)]],
    device const T* onto [[buffer(2), function_constant(has_onto)]],
    device T* y [[buffer(3)]],
    constant AltupMatchArgs& args [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[2 * 32];
  const uint first = row * args.hidden;
  float own = 0.0f, other = 0.0f;
  for (uint i = first + tid; i < first + args.hidden; i += threads) {
    own = fma(float(x[i]), float(x[i]), own);
    other = fma(float(like[i]), float(like[i]), other);
  }
  own = threadgroup_sum(own, partial, lane, simdgroup, simdgroups) / float(args.hidden);
  other = threadgroup_sum(other, partial + 32, lane, simdgroup, simdgroups) / float(args.hidden);
  const float factor = sqrt(other) * rsqrt(max(own, args.least));
  for (uint i = first + tid; i < first + args.hidden; i += threads) {
    const float v = float(x[i]) * factor;
    y[i] = T(args.scale * (has_onto ? float(onto[i]) + v : v));
  }
}

// foundry-lint: instance(altup_copy<half>)
template <typename T>
[[kernel]] void altup_copy(
    device const T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant uint& count [[buffer(2)]],
    uint gid [[thread_position_in_grid]]) {
  if (gid < count)
    y[gid] = x[gid];
}
