// Argmax of rows in up to two stages: chunks of a row to partials, partials to the index. As in torch, the lowest index
// wins among equals (-0 equals 0), and NaN counts as the maximum.
#include "sampling/argmax.h"

using namespace metal;
using namespace foundry;

// Floats as unsigned integers of the same order; every NaN above everything else.
METAL_FUNC uint order_key(float x) {
  const uint bits = as_type<uint>(x == 0.0f ? 0.0f : x);
  const uint key = (bits & 0x80000000u) ? ~bits : (bits | 0x80000000u);
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0xffffffffu : key;
}

// The best (key, index) of the threadgroup, in every thread. Indices grow with the lane and the simdgroup only within one
// step of a loop, so equals are decided by index, never by position.
METAL_FUNC ArgmaxPartial threadgroup_best(uint key, uint index, threadgroup ArgmaxPartial* partial, uint lane,
                                          uint simdgroup, uint simdgroups) {
  ArgmaxPartial best;
  best.key = simd_max(key);
  best.index = simd_min(key == best.key ? index : 0xffffffffu);
  if (lane == 0)
    partial[simdgroup] = best;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = 0; i < simdgroups; ++i) {
    const ArgmaxPartial other = partial[i];
    if (other.key > best.key || (other.key == best.key && other.index < best.index))
      best = other;
  }
  return best;
}

// foundry-lint: instance(argmax_chunks<half>)
template <typename T>
[[kernel]] void argmax_chunks(
    device const T* logits [[buffer(0)]],
    device ArgmaxPartial* partials [[buffer(1)]],
    device long* result [[buffer(2)]],
    constant ArgmaxArgs& args [[buffer(3)]],
    uint2 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup ArgmaxPartial partial[32];
  const uint row = tgid.y, chunk = tgid.x, threads = simdgroups * simd_width;
  device const T* x = logits + row_offset(args.logits, row);
  const uint end = min((chunk + 1) * argmax_chunk, args.n);

  uint key = 0, index = 0xffffffffu;  // below every value: the smallest key of a float is that of -infinity
  for (uint i = chunk * argmax_chunk + tid; i < end; i += threads) {
    const uint k = order_key(float(x[i]));
    if (k > key) {
      key = k;
      index = i;
    }
  }
  const ArgmaxPartial best = threadgroup_best(key, index, partial, lane, simdgroup, simdgroups);
  if (tid == 0) {
    if (args.chunks == 1)
      result[row] = long(best.index);
    else
      partials[row * args.chunks + chunk] = best;
  }
}

// One threadgroup a row.
[[kernel]] void argmax_merge(
    device const ArgmaxPartial* partials [[buffer(0)]],
    device long* result [[buffer(1)]],
    constant ArgmaxArgs& args [[buffer(2)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup ArgmaxPartial partial[32];
  uint key = 0, index = 0xffffffffu;
  for (uint i = tid; i < args.chunks; i += threads) {  // chunks ascend, so the first of equals has the lowest index
    const ArgmaxPartial p = partials[row * args.chunks + i];
    if (p.key > key) {
      key = p.key;
      index = p.index;
    }
  }
  const ArgmaxPartial best = threadgroup_best(key, index, partial, lane, simdgroup, simdgroups);
  if (tid == 0)
    result[row] = long(best.index);
}
