// Truncation where more tokens are in question than fit into threadgroup memory: bisection of the keys, each step a
// pass over the tiles that still matter, first until they fit and otherwise to the end. Exact as well.
#pragma once
#include "sampling/sample_keep.h"

namespace foundry {

// The number of tokens with keys above `key`, or their mass, as total(shared).
template <bool Mass>
METAL_FUNC void measure_above(uint key, thread const SampleRow& row, threadgroup ulong* shared, uint simdgroup,
                              uint lane) {
  ulong sum = 0;
  for (uint t = simdgroup; t < row.n_tiles; t += row.simdgroups) {
    if (row.tiles[t].key <= key) continue;
    const uint start = t * sample_tile, end = metal::min(start + sample_tile, row.n);
    for (uint i = start + lane; i < end; i += simd_width) {
      const float score = row.scores[i];
      if (order_key(score) > key) sum += Mass ? mass_of(score, row.largest) : 1;
    }
  }
  deposit_sum(sum, shared, row.simdgroups, simdgroup, lane);
}

// Publishes a higher `bound` (see lower_bound) that not more tokens reach than fit; if there is none, the highest of
// all.
METAL_FUNC void raise_bound(thread const SampleRow& row, device const SampleParams& params, uint bound,
                            threadgroup uint* result, threadgroup ulong* shared, uint simdgroup, uint lane) {
  const uint stages = params.stages;
  const bool top_k = stages & stage_top_k, top_p = stages & stage_top_p, min_p = stages & stage_min_p;
  const ulong limit = share_of(row.mass, params.top_p), needed = needed_tokens(params);
  uint low = bound - 1, high = order_key(row.largest); // all up to `low` are cut
  bool fits = false;
  while (!fits && high - low > 1) {
    const uint key = low + (high - low) / 2;
    bool cut = top_k || (min_p && metal::exp(value_of_key(key) - row.largest) < params.min_p);
    if (top_p && !cut) {
      measure_above<true>(key, row, shared, simdgroup, lane);
      cut = total(shared) >= limit;
    }
    if (cut) {
      measure_above<false>(key, row, shared, simdgroup, lane);
      cut = total(shared) >= needed;
      fits = cut && total(shared) <= sample_candidates;
    }
    if (cut)
      low = key;
    else
      high = key;
  }
  publish(low + 1, result, simdgroup, lane);
}

// Publishes the lowest key, from `low` on, above which there is less than `limit` > 0.
template <bool Mass>
METAL_FUNC void lowest_kept(ulong limit, uint low, thread const SampleRow& row, threadgroup uint* result,
                            threadgroup ulong* shared, uint simdgroup, uint lane) {
  uint high = order_key(row.largest), key = low; // `low` often is what is wanted
  low -= 1;
  while (high - low > 1) {
    measure_above<Mass>(key, row, shared, simdgroup, lane);
    if (total(shared) < limit)
      high = key;
    else
      low = key;
    key = low + (high - low) / 2;
  }
  publish(high, result, simdgroup, lane);
}

// The tokens kept are the highest so many: all above `key`, and of those at it the last `ties` of `all_ties`.
struct Threshold {
  uint key;
  ulong ties, all_ties;
};

METAL_FUNC Threshold threshold(thread const SampleRow& row, device const SampleParams& params, uint bound,
                               threadgroup uint* result, threadgroup ulong* shared, uint simdgroup, uint lane) {
  const uint stages = params.stages;
  ulong count = row.n, mass = row.mass;
  if (stages & stage_top_k) {
    lowest_kept<false>(params.top_k, bound, row, result, shared, simdgroup, lane);
    const uint key = *result;
    measure_above<false>(key - 1, row, shared, simdgroup, lane);
    count = total(shared);
    measure_above<true>(key - 1, row, shared, simdgroup, lane);
    mass = total(shared);
  }
  if (stages & stage_top_p) {
    const ulong limit = share_of(mass, params.top_p);
    ulong kept = 0;
    if (limit > 0) {
      lowest_kept<true>(limit, bound, row, result, shared, simdgroup, lane);
      const uint key = *result;
      measure_above<false>(key, row, shared, simdgroup, lane);
      const ulong larger = total(shared);
      measure_above<false>(key - 1, row, shared, simdgroup, lane);
      const ulong ties = total(shared) - larger;
      measure_above<true>(key, row, shared, simdgroup, lane);
      const ulong room = limit - total(shared), one = mass_of(value_of_key(key), row.largest);
      kept = larger + (one ? metal::min(ties, (room + one - 1) / one) : ties);
    }
    count = metal::min(count, metal::max(kept, ulong(params.top_p_keep)));
  }
  if (stages & stage_min_p) {
    uint low = key_of_nothing, high = order_key(row.largest); // the lowest key with enough weight
    while (high - low > 1) {
      const uint key = low + (high - low) / 2;
      if (metal::exp(value_of_key(key) - row.largest) >= params.min_p)
        high = key;
      else
        low = key;
    }
    measure_above<false>(high - 1, row, shared, simdgroup, lane);
    count = metal::min(count, metal::max(total(shared), ulong(params.min_p_keep)));
  }
  lowest_kept<false>(count, bound, row, result, shared, simdgroup, lane);
  Threshold limit;
  limit.key = *result;
  measure_above<false>(limit.key, row, shared, simdgroup, lane);
  const ulong larger = total(shared);
  measure_above<false>(limit.key - 1, row, shared, simdgroup, lane);
  limit.all_ties = total(shared) - larger;
  limit.ties = metal::min(count - larger, limit.all_ties);
  return limit;
}

} // namespace foundry
