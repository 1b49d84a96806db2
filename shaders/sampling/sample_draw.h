// The draw: the first token in order of index at which the sum of masses exceeds the random share of their total.
#pragma once
#include "sampling/sample_slow.h"

namespace foundry {

// Mass of token i of a tile. Where all of them round to none, the largest have some.
METAL_FUNC ulong mass_in_tile(thread const SampleRow& row, uint tile, uint i, bool tiny) {
  if (i >= row.n) return 0;
  return tiny ? order_key(row.scores[i]) == row.tiles[tile].key : mass_of(row.scores[i], row.largest);
}

// The lowest token of the tile whose score has this key; one simdgroup calls it.
METAL_FUNC uint largest_of_tile(thread const SampleRow& row, uint tile, uint key, uint lane) {
  uint found = 0xffffffffu;
  for (uint i = tile * sample_tile + lane; i < metal::min(row.n, (tile + 1) * sample_tile); i += simd_width)
    if (found == 0xffffffffu && order_key(row.scores[i]) == key) found = i;
  return metal::simd_min(found);
}

// In one simdgroup: the token of a tile at which the sum passes `rest`.
METAL_FUNC uint draw_from_tile(thread const SampleRow& row, uint tile, ulong rest, uint lane) {
  const uint start = tile * sample_tile;
  ulong sums[sample_tile / simd_width], all = 0;
  for (uint j = 0; j < sample_tile / simd_width; ++j) {
    sums[j] = simd_sum_exact(mass_in_tile(row, tile, start + j * simd_width + lane, false));
    all += sums[j];
  }
  const bool tiny = all == 0;
  for (uint j = 0; tiny && j < sample_tile / simd_width; ++j) {
    sums[j] = simd_sum_exact(mass_in_tile(row, tile, start + j * simd_width + lane, true));
    all += sums[j];
  }
  rest = metal::min(rest, all - 1); // the tile's mass is rounded otherwise than the sum of its tokens
  uint first = start;               // of the 32 tokens in question
  ulong sum = 0, before = 0;
  for (uint j = 0; j < sample_tile / simd_width; ++j) {
    sum += sums[j];
    if (sum <= rest) {
      before = sum;
      first = start + (j + 1) * simd_width;
    }
  }
  sum = before + simd_inclusive_sum_exact(mass_in_tile(row, tile, first + lane, tiny), lane);
  return metal::simd_min(sum > rest ? first + lane : 0xffffffffu);
}

// Among candidates, which the threads share in order: the one that finds the token writes it to *picked. Their mass
// is total(shared).
METAL_FUNC void draw_candidate(thread const SampleRow& row, uint n, threadgroup const uint* kept,
                               threadgroup const ulong* masses, threadgroup const uint* indices,
                               threadgroup uint* picked, threadgroup ulong* shared, uint simdgroup, uint lane) {
  const TileRange own = range_in_order(n, simdgroup * simd_width + lane, row.simdgroups * simd_width);
  ulong mass = 0;
  for (uint i = own.first; i < own.last; ++i) mass += kept[i] ? masses[i] : 0;
  ulong sum = deposit_prefix(mass, shared, row.simdgroups, simdgroup, lane);
  const ulong wanted = share_of(total(shared), row.fraction);
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
  const TileRange own = range_in_order(row.n_tiles, simdgroup, row.simdgroups);
  const uint start = own.first * sample_tile, end = metal::min(own.last * sample_tile, row.n);
  ulong ties = 0, mass = 0;
  for (uint i = start + lane; i < end; i += simd_width) ties += order_key(row.scores[i]) == limit.key;
  deposit_prefix(ties, shared, row.simdgroups, simdgroup, lane);
  const uint ties_before = uint(shared[simdgroup]);

  uint seen = ties_before;
  for (uint i = start; i < end; i += simd_width) mass += kept_mass(row, limit, i + lane, seen);
  deposit_prefix(mass, shared, row.simdgroups, simdgroup, lane);
  ulong before = shared[simdgroup];
  const ulong all = total(shared), wanted = share_of(all, row.fraction);
  seen = ties_before;
  for (uint i = start; i < end; i += simd_width) {
    const ulong one = kept_mass(row, limit, i + lane, seen), sum = before + simd_inclusive_sum_exact(one, lane);
    if (sum > wanted && sum - one <= wanted) *picked = i + lane;
    before = simd_broadcast_exact(sum, simd_width - 1);
    if (probs && i + lane < row.n) probs[i + lane] = float(one) / float(all);
  }
}

} // namespace foundry
