// The draw: the first token in order of index at which the sum of masses exceeds the random share of their total.
#pragma once
#include "sample_slow.h"

namespace foundry {

// Mass of token i of a tile. Where all of them round to none, the largest have some.
METAL_FUNC ulong mass_in_tile(thread const SampleRow& row, uint tile, uint i, bool tiny) {
  if (i >= row.n) return 0;
  return tiny ? order_key(row.scores[i]) == row.tiles[tile].key : mass_of(row.scores[i], row.largest);
}

// In one simdgroup: the token of a tile at which the sum passes `rest`.
METAL_FUNC uint draw_from_tile(thread const SampleRow& row, uint tile, ulong rest, uint lane) {
  ulong total = 0;
  const uint start = tile * sample_tile;
  for (uint j = lane; j < sample_tile; j += simd_width) total += mass_in_tile(row, tile, start + j, false);
  total = simd_sum_exact(total);
  const bool tiny = total == 0;
  rest = metal::min(rest, tiny ? 0 : total - 1); // the tile's mass is rounded otherwise than the sum of its tokens
  uint chosen = 0xffffffffu;
  ulong before = 0;
  for (uint j = lane; j < sample_tile; j += simd_width) {
    const ulong sum = before + simd_inclusive_sum_exact(mass_in_tile(row, tile, start + j, tiny));
    if (sum > rest) chosen = metal::min(chosen, start + j);
    before = simd_broadcast_exact(sum, simd_width - 1);
  }
  return metal::simd_min(chosen);
}

// Among candidates, which the threads share in order: the one that finds the token writes it to *picked. Their mass
// is sum_of(shared).
METAL_FUNC void draw_candidate(thread const SampleRow& row, uint n, threadgroup const uint* kept,
                               threadgroup const ulong* masses, threadgroup const uint* indices,
                               threadgroup uint* picked, threadgroup ulong* shared, uint simdgroup, uint lane) {
  const Share own = share_in_order(n, simdgroup * simd_width + lane, row.simdgroups * simd_width);
  ulong mass = 0;
  for (uint i = own.first; i < own.last; ++i) mass += kept[i] ? masses[i] : 0;
  ulong sum = deposit_prefix(mass, shared, simdgroup, lane);
  const ulong wanted = share_of(sum_of(shared, row.simdgroups), row.fraction);
  if (sum <= wanted && wanted < sum + mass) {
    for (uint i = own.first; i < own.last && sum <= wanted; ++i) {
      sum += kept[i] ? masses[i] : 0;
      *picked = indices[i];
    }
  }
}

// Mass of token i if it is kept; `ties` counts those at the threshold, 32 tokens at a time.
METAL_FUNC ulong kept_mass(thread const SampleRow& row, thread const Threshold& limit, uint i, thread uint& ties) {
  const float score = i < row.n ? row.scores[i] : -INFINITY;
  const uint key = order_key(score);
  const uint tie = key == limit.key;
  const bool among_last = ties + metal::simd_prefix_exclusive_sum(tie) + limit.ties >= limit.all_ties;
  ties += metal::simd_sum(tie);
  return key > limit.key || (tie && among_last) ? mass_of(score, row.largest) : 0;
}

// Where the kept tokens are known by their threshold only; the simdgroups share the row in order. probs: null, or where
// the row's probabilities go.
METAL_FUNC void draw_slowly(thread const SampleRow& row, thread const Threshold& limit, device float* probs,
                            threadgroup uint* picked, threadgroup ulong* shared, uint simdgroup, uint lane) {
  const Share own = share_in_order(row.n_tiles, simdgroup, row.simdgroups);
  const uint start = own.first * sample_tile, end = metal::min(own.last * sample_tile, row.n);
  ulong ties = 0, mass = 0;
  for (uint i = start + lane; i < end; i += simd_width) ties += order_key(row.scores[i]) == limit.key;
  deposit_sum(ties, shared, simdgroup, lane);
  const uint ties_before = uint(sum_of(shared, simdgroup));

  uint seen = ties_before;
  for (uint i = start; i < end; i += simd_width) mass += kept_mass(row, limit, i + lane, seen);
  deposit_sum(mass, shared, simdgroup, lane);
  ulong before = sum_of(shared, simdgroup);
  const ulong total = sum_of(shared, row.simdgroups), wanted = share_of(total, row.fraction);
  seen = ties_before;
  for (uint i = start; i < end; i += simd_width) {
    const ulong one = kept_mass(row, limit, i + lane, seen), sum = before + simd_inclusive_sum_exact(one);
    if (sum > wanted && sum - one <= wanted) *picked = i + lane;
    before = simd_broadcast_exact(sum, simd_width - 1);
    if (probs && i + lane < row.n) probs[i + lane] = float(one) / float(total);
  }
}

} // namespace foundry
