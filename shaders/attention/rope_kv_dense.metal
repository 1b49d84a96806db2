// Rotary embedding of q and k, and the write of k and v into the cache, in one launch; with an RMSNorm of each q and k
// head before or after it, or of all heads at once before it, where a model has those. cos and sin may be wider than T;
// between reading and the one rounding at the end all is f32.
#include "attention/new_heads.h"

#include "common/vec.h"

using namespace metal;
using namespace foundry;

// a and b in one row: its even elements to a, the odd ones to b.
template <int VEC>
METAL_FUNC void unzip(thread float (&a)[VEC], thread float (&b)[VEC]) {
  float row[2 * VEC];
  for (int n = 0; n < VEC; ++n)
    row[n] = a[n], row[VEC + n] = b[n];
  for (int n = 0; n < VEC; ++n)
    a[n] = row[2 * n], b[n] = row[2 * n + 1];
}

// The other way round.
template <int VEC>
METAL_FUNC void zip(thread float (&a)[VEC], thread float (&b)[VEC]) {
  float row[2 * VEC];
  for (int n = 0; n < VEC; ++n)
    row[2 * n] = a[n], row[2 * n + 1] = b[n];
  for (int n = 0; n < VEC; ++n)
    a[n] = row[n], b[n] = row[VEC + n];
}

// A thread owns 2 VEC elements of one head: VEC pairs to rotate, or 2 VEC to copy.
// foundry-lint: instance(rope_kv_dense<half, float, 8>)
// foundry-lint: instance(rope_kv_dense<bfloat, bfloat, 1>)
template <typename T, typename Table, int VEC>
[[kernel]] void rope_kv_dense(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const Table* cosines [[buffer(3), function_constant(has_rope)]],
    device const Table* sines [[buffer(4), function_constant(has_rope)]],
    device const int* positions [[buffer(5)]],
    device const int* step [[buffer(6)]],
    device T* k_cache [[buffer(7)]],
    device T* v_cache [[buffer(8)]],
    device T* q_out [[buffer(9)]],
    constant RopeKvArgs& args [[buffer(10)]],
    uint gid [[thread_position_in_grid]]) {
  const uint heads = args.n_heads + 2 * args.n_kv_heads;
  const uint unit = gid % args.units, row = gid / (args.units * heads), head = gid / args.units % heads;
  const uint token = row % args.q_len, batch = row / args.q_len;
  device const T* in = head_in(args, batch, token, head, q, k, v);
  device T* out = head_out(args, step, batch, token, head, q_out, k_cache, v_cache);

  const Pair pair = pair_of(args, head, unit * VEC);
  if (pair.first >= (is_value(args, head) ? args.value_dim : args.head_dim))  // k and v heads may differ in size
    return;
  const bool rotates = has_rope && pair.rotates, neighbours = !rotates || args.interleaved;
  const uint second = neighbours ? pair.first + VEC : pair.second;
  float a[VEC], b[VEC];
  load(in + pair.first, a);
  load(in + second, b);
  if (rotates) {
    const Angles angles = angles_of(args, positions, batch, token, head);
    device const Table* cos_row = cosines + angles.cosines + pair.column;
    device const Table* sin_row = sines + angles.sines + pair.column;
    float cos_a[VEC], cos_b[VEC], sin_a[VEC], sin_b[VEC];
    load(cos_row, cos_a);
    load(cos_row + args.rotary_dim / 2, cos_b);
    load(sin_row, sin_a);
    load(sin_row + args.rotary_dim / 2, sin_b);
    if (args.interleaved)
      unzip(a, b);
    for (int n = 0; n < VEC; ++n) {
      const float x = a[n], y = b[n];
      a[n] = x * cos_a[n] - y * sin_a[n];
      b[n] = y * cos_b[n] + x * sin_b[n];
    }
    if (args.interleaved && !args.deinterleave)
      zip(a, b);
  }
  const bool moves = rotates && args.deinterleave;
  store(out + (moves ? pair.column : pair.first), a);
  store(out + (moves ? pair.column + args.rotary_dim / 2 : second), b);
}

// A simdgroup owns a head, a lane EACH elements of it.
// foundry-lint: instance(norm_rope_kv_dense<half, float, Llama, 4>)
template <typename T, typename Table, typename Kind, int EACH>
[[kernel]] void norm_rope_kv_dense(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const Table* cosines [[buffer(3), function_constant(has_rope)]],
    device const Table* sines [[buffer(4), function_constant(has_rope)]],
    device const int* positions [[buffer(5)]],
    device const int* step [[buffer(6)]],
    device T* k_cache [[buffer(7)]],
    device T* v_cache [[buffer(8)]],
    device T* q_out [[buffer(9)]],
    constant RopeKvArgs& args [[buffer(10)]],
    device const T* q_norm [[buffer(11)]],
    device const T* k_norm [[buffer(12)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float memory[rope_store_simdgroups][32 * EACH];
  const uint heads = args.n_heads + 2 * args.n_kv_heads, index = group * simdgroups + simdgroup;
  if (index >= args.rows * heads)
    return;
  const uint head = index % heads, row = index / heads, token = row % args.q_len, batch = row / args.q_len;
  const NewHeads<T, Table, Kind> made{q, k, v, cosines, sines, positions, q_norm, k_norm};
  Head<EACH> x{batch, token, head};
  made.read(args, x, lane);
  made.make(args, true, x, memory[simdgroup], lane);
  x.template write<T>(args, head_out(args, step, batch, token, head, q_out, k_cache, v_cache), lane);
}
