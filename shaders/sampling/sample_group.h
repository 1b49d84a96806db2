// Exact sums over the threads of a threadgroup, and the integer masses that are summed. Results that all threads share
// come through threadgroup memory, so that loops and branches on them may hold barriers.
#pragma once
#include "sampling/sample.h"

namespace foundry {

// exp(score - largest), for score <= largest, in units of 2^-40.
METAL_FUNC ulong mass_of(float weight) { return ulong(metal::rint(weight * 1099511627776.0f)); }
METAL_FUNC ulong mass_of(float score, float largest) { return mass_of(metal::exp(score - largest)); }

// floor(mass * fraction / 2^32), for mass < 2^60.
METAL_FUNC ulong share_of(ulong mass, uint fraction) {
  return (mass >> 32) * fraction + (((mass & 0xffffffffu) * fraction) >> 32);
}

// There are no simd functions of 64 bits; thirds of v < 2^60 leave room for 32 lanes.
METAL_FUNC ulong simd_sum_exact(ulong v) {
  const ulong high = metal::simd_sum(uint(v >> 40)), middle = metal::simd_sum(uint(v >> 20) & 0xfffffu);
  return (high << 40) + (middle << 20) + metal::simd_sum(uint(v) & 0xfffffu);
}
// Five shuffles: where prefix sums are no instruction, they go lane by lane.
METAL_FUNC ulong simd_inclusive_sum_exact(ulong v, uint lane) {
  for (ushort by = 1; by < simd_width; by *= 2) {
    const uint2 other = metal::simd_shuffle_up(uint2(uint(v), uint(v >> 32)), by);
    v += lane >= by ? (ulong(other.y) << 32) | other.x : 0;
  }
  return v;
}
METAL_FUNC ulong simd_broadcast_exact(ulong v, ushort lane) {
  return (ulong(metal::simd_broadcast(uint(v >> 32), lane)) << 32) | metal::simd_broadcast(uint(v), lane);
}

// All threads call these; then total(shared) is the sum over all threads, or the largest. `shared` has 33 places.
METAL_FUNC void deposit(ulong v, threadgroup ulong* shared, uint simdgroup, uint lane) {
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup); // until the last ones are read
  if (lane == 0) shared[simdgroup] = v;
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}
METAL_FUNC void deposit_sum(ulong v, threadgroup ulong* shared, uint simdgroups, uint simdgroup, uint lane) {
  deposit(simd_sum_exact(v), shared, simdgroup, lane);
  if (simdgroup == 0) {
    const ulong sum = simd_sum_exact(lane < simdgroups ? shared[lane] : 0);
    if (lane == 0) shared[simd_width] = sum;
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}
METAL_FUNC void deposit_max(uint v, threadgroup ulong* shared, uint simdgroups, uint simdgroup, uint lane) {
  deposit(metal::simd_max(v), shared, simdgroup, lane);
  if (simdgroup == 0) {
    const uint largest = metal::simd_max(lane < simdgroups ? uint(shared[lane]) : 0u);
    if (lane == 0) shared[simd_width] = largest;
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}
// Returns the sum over the threads before this one; shared[simdgroup] is that before the simdgroup.
METAL_FUNC ulong deposit_prefix(ulong v, threadgroup ulong* shared, uint simdgroups, uint simdgroup, uint lane) {
  const ulong inclusive = simd_inclusive_sum_exact(v, lane);
  deposit(simd_broadcast_exact(inclusive, simd_width - 1), shared, simdgroup, lane);
  if (simdgroup == 0) {
    const ulong own = lane < simdgroups ? shared[lane] : 0, sum = simd_inclusive_sum_exact(own, lane);
    shared[lane] = sum - own;
    if (lane == simd_width - 1) shared[simd_width] = sum;
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  return shared[simdgroup] + inclusive - v;
}
METAL_FUNC ulong total(threadgroup const ulong* shared) { return shared[simd_width]; }

// One value for all threads, which read *result. Between two of these to one place, all threads pass a barrier.
METAL_FUNC void publish(uint v, threadgroup uint* result, uint simdgroup, uint lane) {
  if (simdgroup == 0 && lane == 0) *result = v;
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}

// An equal share of `n` things in order for each thread.
struct TileRange {
  uint first, last;
};
METAL_FUNC TileRange range_in_order(uint n, uint member, uint members) {
  const uint each = (n + members - 1) / members;
  const uint first = metal::min(member * each, n);
  return {first, metal::min(first + each, n)};
}

} // namespace foundry
