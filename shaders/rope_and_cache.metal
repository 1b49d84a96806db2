// Rotary embedding of q and k, and the write of k and v into the cache, in one launch. A thread owns 2 V elements of one
// head: V pairs (i, i + rotary_dim / 2) to rotate, or 2 V to copy. cos and sin may be wider than T; everything between
// reading and the one rounding at the end is f32.
#include "rope_and_cache.h"

#include "vec.h"

using namespace metal;
using namespace foundry;

constant bool has_rope [[function_constant(FC_ROPE_ROTATE)]];

// foundry-lint: instance(rope_and_cache<half, float, 8>)
// foundry-lint: instance(rope_and_cache<bfloat, bfloat, 1>)
template <typename T, typename C, int V>
[[kernel]] void rope_and_cache(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const C* cosines [[buffer(3), function_constant(has_rope)]],
    device const C* sines [[buffer(4), function_constant(has_rope)]],
    device T* k_cache [[buffer(5)]],
    device T* v_cache [[buffer(6)]],
    device T* q_out [[buffer(7)]],
    constant RopeAndCacheArgs& args [[buffer(8)]],
    uint gid [[thread_position_in_grid]]) {
  const uint heads = args.n_heads + 2 * args.n_kv_heads;  // the q heads, then the k heads, then the v heads
  const uint unit = gid % args.units, row = gid / (args.units * heads);
  const uint token = row % args.q_len, batch = row / args.q_len;
  uint head = gid / args.units % heads;

  device const T* in;
  device T* out;
  uint dim = args.head_dim, rotary = has_rope ? args.rotary_dim : 0;
  if (head < args.n_heads) {
    in = q + batch * args.q_batch + token * args.q_token + head * dim;
    out = q_out + ((batch * args.n_heads + head) * args.q_len + token) * dim;
  } else if (head < args.n_heads + args.n_kv_heads) {
    head -= args.n_heads;
    in = k + batch * args.k_batch + token * args.k_token + head * dim;
    out = k_cache + batch * args.k_cache_batch + head * args.k_cache_head + (args.start + token) * args.k_cache_token;
  } else {
    head -= args.n_heads + args.n_kv_heads;
    dim = args.value_dim;
    rotary = 0;
    in = v + batch * args.v_batch + token * args.v_token + head * dim;
    out = v_cache + batch * args.v_cache_batch + head * args.v_cache_head + (args.start + token) * args.v_cache_token;
  }

  const uint half_rotary = rotary / 2;
  float a[V], b[V];
  if (has_rope && unit * V < half_rotary) {
    const uint i = unit * V, j = i + half_rotary;
    device const C* cos_row = cosines + batch * args.cos_batch + token * args.cos_token;
    device const C* sin_row = sines + batch * args.sin_batch + token * args.sin_token;
    float cos_a[V], cos_b[V], sin_a[V], sin_b[V];
    load(in + i, a);
    load(in + j, b);
    load(cos_row + i, cos_a);
    load(cos_row + j, cos_b);
    load(sin_row + i, sin_a);
    load(sin_row + j, sin_b);
    for (int n = 0; n < V; ++n) {
      const float x = a[n], y = b[n];
      a[n] = x * cos_a[n] - y * sin_a[n];
      b[n] = y * cos_b[n] + x * sin_b[n];
    }
    store(out + i, a);
    store(out + j, b);
  } else {
    const uint i = rotary + 2 * (unit * V - half_rotary);
    if (i < dim) {  // k and v heads may differ in size
      load(in + i, a);
      load(in + i + V, b);
      store(out + i, a);
      store(out + i + V, b);
    }
  }
}
