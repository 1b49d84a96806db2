// Exact sums over the threads of a threadgroup, and the integer masses that are summed. Results that all threads share
// come through threadgroup memory, so that loops and branches on them may hold barriers.
#pragma once
#include "sample.h"

namespace foundry {

// exp(score - largest), for score <= largest, in units of 2^-40.
METAL_FUNC ulong mass_of(float weight) { return ulong(metal::rint(weight * 1099511627776.0f)); }
METAL_FUNC ulong mass_of(float score, float largest) { return mass_of(metal::exp(score - largest)); }

// floor(mass * fraction / 2^32), for mass < 2^60.
METAL_FUNC ulong share_of(ulong mass, uint fraction) {
  return (mass >> 32) * fraction + (((mass & 0xffffffffu) * fraction) >> 32);
}

// There are no simd functions of 64 bits; halves of v < 2^51 leave room for 32 lanes.
METAL_FUNC ulong simd_sum_exact(ulong v) {
  return (ulong(metal::simd_sum(uint(v >> 24))) << 24) + metal::simd_sum(uint(v) & 0xffffffu);
}
METAL_FUNC ulong simd_inclusive_sum_exact(ulong v) {
  return (ulong(metal::simd_prefix_inclusive_sum(uint(v >> 24))) << 24) +
         metal::simd_prefix_inclusive_sum(uint(v) & 0xffffffu);
}
METAL_FUNC ulong simd_broadcast_exact(ulong v, ushort lane) {
  return (ulong(metal::simd_broadcast(uint(v >> 32), lane)) << 32) | metal::simd_broadcast(uint(v), lane);
}

// All threads call this; then `shared` holds one value per simdgroup, and sum_of or max_of is that of all.
METAL_FUNC void deposit(ulong v, threadgroup ulong* shared, uint simdgroup, uint lane) {
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup); // until the last ones are read
  if (lane == 0) shared[simdgroup] = v;
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}
METAL_FUNC void deposit_sum(ulong v, threadgroup ulong* shared, uint simdgroup, uint lane) {
  deposit(simd_sum_exact(v), shared, simdgroup, lane);
}
METAL_FUNC void deposit_max(uint v, threadgroup ulong* shared, uint simdgroup, uint lane) {
  deposit(metal::simd_max(v), shared, simdgroup, lane);
}
METAL_FUNC ulong sum_of(threadgroup const ulong* shared, uint simdgroups) {
  ulong sum = 0;
  for (uint i = 0; i < simdgroups; ++i) sum += shared[i];
  return sum;
}
METAL_FUNC uint max_of(threadgroup const ulong* shared, uint simdgroups) {
  uint best = 0;
  for (uint i = 0; i < simdgroups; ++i) best = metal::max(best, uint(shared[i]));
  return best;
}

// deposit_sum that returns the sum over the threads before this one.
METAL_FUNC ulong deposit_prefix(ulong v, threadgroup ulong* shared, uint simdgroup, uint lane) {
  const ulong inclusive = simd_inclusive_sum_exact(v);
  deposit(simd_broadcast_exact(inclusive, simd_width - 1), shared, simdgroup, lane);
  return sum_of(shared, simdgroup) + inclusive - v;
}

// One value for all threads, which read *result. Between two of these to one place, all threads pass a barrier.
METAL_FUNC void publish(uint v, threadgroup uint* result, uint simdgroup, uint lane) {
  if (simdgroup == 0 && lane == 0) *result = v;
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}

// An equal share of `n` things in order for each thread.
struct Share {
  uint first, last;
};
METAL_FUNC Share share_in_order(uint n, uint member, uint members) {
  const uint each = (n + members - 1) / members;
  const uint first = metal::min(member * each, n);
  return {first, metal::min(first + each, n)};
}

} // namespace foundry
