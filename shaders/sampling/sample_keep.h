// Truncation: which tokens top-k, top-p and min-p leave. Nothing is sorted. In all of it, "above" a token are the
// larger scores, and of equal ones the higher indices: where Hugging Face sorts ascending and cuts from below, lower
// indices go first.
#pragma once
#include "sampling/sample_group.h"

namespace foundry {

// A row whose scores and tiles are known; the same in all threads. Its largest score is finite.
struct SampleRow {
  device const float* scores;
  device const SamplePart* tiles;
  uint n, n_tiles, simdgroups;
  float largest;
  ulong mass;    // of the whole row
  uint fraction; // the random number
};

METAL_FUNC ulong tile_mass(SamplePart tile, float largest) {
  if (tile.key <= key_of_nothing) return 0;
  return mass_of(as_type<float>(tile.value) * metal::exp(metal::min(value_of_key(tile.key) - largest, 0.0f)));
}

METAL_FUNC TileRange own_tiles(thread const SampleRow& row, uint simdgroup, uint lane) {
  return range_in_order(row.n_tiles, simdgroup * simd_width + lane, row.simdgroups * simd_width);
}

// So many of the largest matter, whatever their masses.
METAL_FUNC ulong needed_tokens(device const SampleParams& params) {
  if (params.stages & stage_top_k) return params.top_k;
  return metal::max(params.stages & stage_top_p ? params.top_p_keep : 1u,
                    params.stages & stage_min_p ? params.min_p_keep : 1u);
}

// Publishes a key such that tokens with smaller ones are not kept and don't matter to which others are. From the tiles
// alone: a tile whose largest score reaches the key holds at least one token that does, which settles top-k; top-p
// gives up what lies below if that is at most 1 - p, namely all of the other tiles and at most 256 times the mass at
// the key for each that reaches it.
METAL_FUNC void lower_bound(thread const SampleRow& row, device const SampleParams& params, threadgroup uint* result,
                            threadgroup ulong* shared, uint simdgroup, uint lane) {
  const uint stages = params.stages;
  const bool top_k = stages & stage_top_k, top_p = stages & stage_top_p, min_p = stages & stage_min_p;
  const ulong needed = needed_tokens(params);
  const ulong spare = top_p ? row.mass - share_of(row.mass, params.top_p) : 0;
  const float lowest = min_p ? row.largest + metal::log(params.min_p) * 1.0001f - 0.001f : 0.0f;
  const TileRange own = own_tiles(row, simdgroup, lane);

  uint smallest = 0xffffffffu; // of the tiles' largest
  ulong tiles = 0;
  for (uint t = own.first; t < own.last; ++t) {
    const uint key = row.tiles[t].key;
    if (key > key_of_nothing) {
      smallest = metal::min(smallest, key);
      ++tiles;
    }
  }
  deposit_max(~smallest, shared, row.simdgroups, simdgroup, lane);
  uint low = ~uint(total(shared)), high = order_key(row.largest) + 1, key = low;
  deposit_sum(tiles, shared, row.simdgroups, simdgroup, lane);
  bool possible = row.n > sample_candidates && total(shared) >= needed;
  uint best = key_of_nothing + 1;
  while (possible) {
    ulong reach = 0, below = 0;
    for (uint t = own.first; t < own.last; ++t) {
      const SamplePart tile = row.tiles[t];
      reach += tile.key >= key;
      below += tile.key < key && top_p ? tile_mass(tile, row.largest) : 0;
    }
    deposit_sum(reach, shared, row.simdgroups, simdgroup, lane);
    const ulong reaching = total(shared);
    bool holds = reaching >= needed;
    if (!top_k) {
      bool enough = min_p && value_of_key(key) <= lowest;
      if (top_p) {
        deposit_sum(below, shared, row.simdgroups, simdgroup, lane);
        const ulong at_most = reaching * sample_tile * mass_of(value_of_key(key), row.largest);
        enough = enough || total(shared) + at_most <= spare;
      }
      holds = holds && enough;
    }
    if (holds)
      best = low = key;
    else
      high = key;
    possible = best > key_of_nothing + 1 && high - low > 4096; // close enough
    key = low + (high - low) / 2;
  }
  publish(best, result, simdgroup, lane);
}

// Tokens of at least `bound` in threadgroup memory, in order of index; publishes their number, or one more than fit.
METAL_FUNC void gather(thread const SampleRow& row, uint bound, threadgroup uint* tiles, threadgroup uint* places,
                       threadgroup float* scores, threadgroup uint* indices, threadgroup uint* result,
                       threadgroup ulong* shared, uint simdgroup, uint lane) {
  TileRange own = own_tiles(row, simdgroup, lane);
  ulong count = 0;
  for (uint t = own.first; t < own.last; ++t) count += row.tiles[t].key >= bound;
  uint place = uint(deposit_prefix(count, shared, row.simdgroups, simdgroup, lane));
  const uint n_tiles = uint(total(shared));
  if (n_tiles <= sample_candidates) {
    for (uint t = own.first; t < own.last; ++t)
      if (row.tiles[t].key >= bound) tiles[place++] = t;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
  const uint listed = n_tiles <= sample_candidates ? n_tiles : 0;
  for (uint t = simdgroup; t < listed; t += row.simdgroups) {
    const uint start = tiles[t] * sample_tile, end = metal::min(start + sample_tile, row.n);
    uint found = 0;
    for (uint i = start + lane; i < end; i += simd_width) found += order_key(row.scores[i]) >= bound;
    found = metal::simd_sum(found);
    if (lane == 0) places[t] = found;
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  own = range_in_order(listed, simdgroup * simd_width + lane, row.simdgroups * simd_width);
  count = 0;
  for (uint t = own.first; t < own.last; ++t) count += places[t];
  place = uint(deposit_prefix(count, shared, row.simdgroups, simdgroup, lane));
  for (uint t = own.first; t < own.last; ++t) {
    const uint here = places[t];
    places[t] = place;
    place += here;
  }
  const ulong found = total(shared);
  const bool fits = n_tiles <= sample_candidates && found <= sample_candidates;
  publish(fits ? uint(found) : sample_candidates + 1, result, simdgroup, lane);

  for (uint t = simdgroup; fits && t < listed; t += row.simdgroups) {
    const uint start = tiles[t] * sample_tile;
    uint next = places[t];
    for (uint j = 0; j < sample_tile; j += simd_width) {
      const uint i = start + j + lane;
      const float score = i < row.n ? row.scores[i] : -INFINITY;
      const bool taken = order_key(score) >= bound;
      const uint votes = uint(metal::simd_vote::vote_t(metal::simd_ballot(taken)));
      if (taken) {
        const uint before = next + metal::popcount(votes & ((1u << lane) - 1));
        scores[before] = score;
        indices[before] = i;
      }
      next += metal::popcount(votes);
    }
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}

// kept[i] becomes whether candidate i is: each is compared with all others.
METAL_FUNC void keep_candidates(thread const SampleRow& row, device const SampleParams& params, uint n,
                                threadgroup const float* scores, threadgroup ulong* masses, threadgroup uint* kept,
                                threadgroup ulong* shared, uint simdgroup, uint lane) {
  const uint stages = params.stages, tid = simdgroup * simd_width + lane, threads = row.simdgroups * simd_width;
  ulong mass = 0;
  for (uint i = tid; i < n; i += threads) {
    uint larger = 0;
    if (stages & stage_top_k)
      for (uint j = 0; j < n; ++j) larger += scores[j] > scores[i];
    kept[i] = !(stages & stage_top_k) || larger < params.top_k;
    masses[i] = mass_of(scores[i], row.largest);
    mass += kept[i] ? masses[i] : 0;
  }
  deposit_sum(mass, shared, row.simdgroups, simdgroup, lane); // and a barrier
  const ulong all = stages & stage_top_k ? total(shared) : row.mass;
  const ulong limit = share_of(all, params.top_p);
  const bool top_p = stages & stage_top_p, min_p = stages & stage_min_p;
  for (uint i = tid; (top_p || min_p) && i < n; i += threads) {
    if (!kept[i]) continue;
    ulong above = 0;
    uint rank = 0;
    for (uint j = 0; j < n; ++j) {
      const bool is_above = scores[j] > scores[i] || (scores[j] == scores[i] && j > i);
      above += is_above ? masses[j] : 0;
      rank += is_above;
    }
    const bool in_top_p = !top_p || above < limit || rank < params.top_p_keep;
    const bool in_min_p = !min_p || metal::exp(scores[i] - row.largest) >= params.min_p || rank < params.min_p_keep;
    kept[i] = in_top_p && in_min_p;
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}

} // namespace foundry
