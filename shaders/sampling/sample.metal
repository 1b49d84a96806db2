// The next token of each row: processors, greedy or a draw, and all that is kept of it in device memory. A step is two
// launches: sample_scores over the tiles of all rows, then sample_greedy or sample_draw, one threadgroup a row. Where
// earlier tokens decide what is banned, sample_bans comes first.
#include "sampling/philox.h"
#include "sampling/sample_draw.h"
#include "sampling/sample_scores.h"

using namespace metal;
using namespace foundry;

constant bool draw [[function_constant(FC_SAMPLE_DRAW)]];
constant bool has_rules [[function_constant(FC_SAMPLE_RULES)]];
constant bool has_counts [[function_constant(FC_SAMPLE_COUNTS)]];
constant bool has_bans [[function_constant(FC_SAMPLE_BANS)]];
constant bool has_probs [[function_constant(FC_SAMPLE_PROBS)]];

// One simdgroup a tile.
// foundry-lint: instance(sample_scores<half>)
template <typename T>
[[kernel]] void sample_scores(
    device const T* logits [[buffer(0)]],
    device SamplePart* parts [[buffer(1)]],
    device float* scores [[buffer(2), function_constant(draw)]],
    device const SampleParams* params [[buffer(3)]],
    device const int* length [[buffer(4)]],
    device const uchar* rules [[buffer(5)]],
    device const int* counts [[buffer(6), function_constant(has_counts)]],
    device const int* banned [[buffer(7), function_constant(has_bans)]],
    constant SampleArgs& args [[buffer(8)]],
    uint2 tgid [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  const uint row = tgid.x, tile = tgid.y * simdgroups + simdgroup;
  if (tile >= args.parts)
    return;
  device const T* x = logits + row_offset(args.logits, row);
  params += row * args.own_params;
  rules += row * args.own_rules * args.n;
  const int now = length[row];
  const uint active = has_rules ? active_rules(*params, now) : 0;

  float score[sample_tile / simd_width];
  uint key = 0, index = 0xffffffffu;
  for (uint j = 0; j < sample_tile / simd_width; ++j) {
    const uint i = tile * sample_tile + j * simd_width + lane;
    score[j] = -INFINITY;
    if (i < args.n) {
      float s = float(x[i]);
      if (has_counts)
        s = penalised(s, uint(counts[row * args.n + i]), *params);
      if (has_bans)
        s = banned[row * args.n + i] == now ? -INFINITY : s;
      if (has_rules)
        s = ruled(s, rules[i], active);
      if (draw) {
        s /= params->temperature;
        scores[row * args.n + i] = s;
      }
      score[j] = s;
      const uint k = order_key(s);
      if (k > key) {
        key = k;
        index = i;
      }
    }
  }
  SamplePart part;
  part.key = simd_max(key);
  if (draw) {
    const float largest = value_of_key(part.key);
    float mass = 0.0f;
    if (part.key > key_of_nothing && part.key < key_of_infinity)
      for (uint j = 0; j < sample_tile / simd_width; ++j)
        mass += exp(score[j] - largest);
    part.value = as_type<uint>(simd_sum(mass));
  } else {
    part.value = simd_min(key == part.key ? index : 0xffffffffu);
  }
  if (lane == 0)
    parts[row * args.parts + tile] = part;
}

// What one thread does when the row's token is known. A finished row gets the pad token and keeps its errors to itself.
METAL_FUNC void finish(uint row, uint token, uint error, device const SampleParams& params, device const uchar* rules,
                       device int* counts, device int* length, device int* finished, device int* errors,
                       device long* ids, device long* newest, constant SampleArgs& args) {
  const int place = length[row];
  if (place >= int(args.capacity)) {
    finished[row] = 1;
    return;
  }
  bool done = finished[row] != 0;
  if (error && !done)
    errors[row] |= int(error);
  long chosen = params.pad;
  if (!error && !done) {
    chosen = long(token);
    done = rules[token] & rule_eos;
    if (has_counts)
      counts[row * args.n + token] += 2;
  }
  ids[row * args.capacity + uint(place)] = chosen;
  newest[row] = chosen;
  length[row] = place + 1;
  finished[row] = done || error || place + 1 == int(args.capacity);
}

// Merges the parts of sample_scores.
[[kernel]] void sample_greedy(
    device const SamplePart* parts [[buffer(0)]],
    device const SampleParams* params [[buffer(1)]],
    device const uchar* rules [[buffer(2)]],
    device int* counts [[buffer(3), function_constant(has_counts)]],
    device int* length [[buffer(4)]],
    device int* finished [[buffer(5)]],
    device int* errors [[buffer(6)]],
    device long* ids [[buffer(7)]],
    device long* newest [[buffer(8)]],
    constant SampleArgs& args [[buffer(9)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup SamplePart shared[32];
  SamplePart best;
  best.key = 0;
  best.value = 0xffffffffu;
  for (uint i = tid; i < args.parts; i += threads) {
    const SamplePart p = parts[row * args.parts + i];
    if (p.key > best.key || (p.key == best.key && p.value < best.value))
      best = p;
  }
  const uint key = simd_max(best.key);
  const uint index = simd_min(best.key == key ? best.value : 0xffffffffu);
  if (lane == 0) {
    shared[simdgroup].key = key;
    shared[simdgroup].value = index;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (tid == 0) {
    params += row * args.own_params;
    rules += row * args.own_rules * args.n;
    best = shared[0];
    for (uint i = 1; i < simdgroups; ++i)
      if (shared[i].key > best.key || (shared[i].key == best.key && shared[i].value < best.value))
        best = shared[i];
    finish(row, best.value, error_of(best.key, false), *params, rules, has_counts ? counts : nullptr, length, finished,
           errors, ids, newest, args);
  }
}

// A draw. Keep: rows may draw from what top-k, top-p and min-p leave. A row alone may be greedy, too, so that rows with
// other settings are no company that matters: each goes the way that it would go alone.
// foundry-lint: instance(sample_draw<false>)
// foundry-lint: instance(sample_draw<true>)
template <bool Keep>
[[kernel]] void sample_draw(
    device const SamplePart* parts [[buffer(0)]],
    device const float* scores [[buffer(1)]],
    device const SampleParams* params [[buffer(2)]],
    device const uchar* rules [[buffer(3)]],
    device int* counts [[buffer(4), function_constant(has_counts)]],
    device int* length [[buffer(5)]],
    device const int* start [[buffer(6)]],
    device const long* streams [[buffer(7)]],
    device int* finished [[buffer(8)]],
    device int* errors [[buffer(9)]],
    device long* ids [[buffer(10)]],
    device long* newest [[buffer(11)]],
    device float* probs [[buffer(12), function_constant(has_probs)]],
    constant SampleArgs& args [[buffer(13)]],
    uint r [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  constexpr uint room = Keep ? sample_candidates : 1;
  threadgroup ulong shared[33], masses[room], rest[1];
  threadgroup float candidates[room];
  threadgroup uint indices[room], tiles[room], places[room], result[2];  // result: the token, other results
  SampleRow row = {scores + r * args.n, parts + r * args.parts, args.n, args.parts, simdgroups, 0.0f, 0, 0};
  const TileRange own = own_tiles(row, simdgroup, lane);
  uint key = 0;
  for (uint t = own.first; t < own.last; ++t)
    key = max(key, row.tiles[t].key);
  deposit_max(key, shared, simdgroups, simdgroup, lane);
  params += r * args.own_params;
  rules += r * args.own_rules * args.n;
  const bool greedy = params->stages & stage_greedy, keep = Keep && !greedy && params->stages & stages_that_keep;
  const uint largest = uint(total(shared)), error = error_of(largest, !greedy);
  row.largest = error ? 0.0f : value_of_key(largest);

  ulong mass = 0;
  for (uint t = own.first; t < own.last; ++t)
    mass += tile_mass(row.tiles[t], row.largest);
  ulong before = deposit_prefix(mass, shared, simdgroups, simdgroup, lane);
  row.mass = total(shared);
  const ulong stream = ulong(streams[r]);
  const uint4 counter = uint4(uint(length[r] - start[r]), uint(stream), uint(stream >> 32), 0u);
  row.fraction = philox4x32_10(counter, uint2(params->seed_low, params->seed_high)).x;

  device float* row_probs = has_probs ? probs + r * args.n : nullptr;
  for (uint i = simdgroup * simd_width + lane; has_probs && i < args.n; i += simdgroups * simd_width)
    row_probs[i] = keep || greedy || error ? 0.0f : float(mass_of(row.scores[i], row.largest)) / float(row.mass);
  if (has_probs)
    threadgroup_barrier(mem_flags::mem_device);

  if (!error && greedy) {
    uint tile = own.first;
    while (tile < own.last && row.tiles[tile].key != largest)
      ++tile;
    deposit_max(tile < own.last ? 0xffffffffu - tile : 0u, shared, simdgroups, simdgroup, lane);
    tile = 0xffffffffu - uint(total(shared));
    if (simdgroup == 0) {
      const uint token = largest_of_tile(row, tile, largest, lane);
      if (lane == 0) {
        result[0] = token;
        if (has_probs)
          row_probs[token] = 1.0f;
      }
    }
  } else if (!error && keep) {
    lower_bound(row, *params, result + 1, shared, simdgroup, lane);
    uint bound = result[1];
    gather(row, bound, tiles, places, candidates, indices, result, shared, simdgroup, lane);
    if (result[0] > sample_candidates) {
      raise_bound(row, *params, bound, result + 1, shared, simdgroup, lane);
      bound = result[1];
      gather(row, bound, tiles, places, candidates, indices, result, shared, simdgroup, lane);
    }
    const uint n = result[0];
    if (n <= sample_candidates) {
      keep_candidates(row, *params, n, candidates, masses, tiles, shared, simdgroup, lane);
      draw_candidate(row, n, tiles, masses, indices, result, shared, simdgroup, lane);
      for (uint i = simdgroup * simd_width + lane; has_probs && i < n; i += simdgroups * simd_width)
        row_probs[indices[i]] = tiles[i] ? float(masses[i]) / float(total(shared)) : 0.0f;
    } else {
      const Threshold limit = threshold(row, *params, bound, result + 1, shared, simdgroup, lane);
      draw_slowly(row, limit, row_probs, result, shared, simdgroup, lane);
    }
  } else if (!error) {
    const ulong wanted = share_of(row.mass, row.fraction);
    if (before <= wanted && wanted < before + mass) {
      uint t = own.first;
      for (mass = tile_mass(row.tiles[t], row.largest); before + mass <= wanted;
           mass = tile_mass(row.tiles[++t], row.largest))
        before += mass;
      result[1] = t;
      rest[0] = wanted - before;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) {
      const uint token = draw_from_tile(row, result[1], rest[0], lane);
      if (lane == 0)
        result[0] = token;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0 && lane == 0)
    finish(r, result[0], error, *params, rules, has_counts ? counts : nullptr, length, finished, errors, ids, newest,
           args);
}

// Marks with the row's length what no_repeat_ngram and bad words of several tokens ban at it. One threadgroup a row.
// sequences: their number, as many offsets and one more, then the tokens of the words.
[[kernel]] void sample_bans(
    device const long* ids [[buffer(0)]],
    device const int* length [[buffer(1)]],
    device const SampleParams* params [[buffer(2)]],
    device const int* sequences [[buffer(3)]],
    device atomic_int* banned [[buffer(4)]],
    constant SampleArgs& args [[buffer(5)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]]) {
  device const long* x = ids + row * args.capacity;
  device atomic_int* marks = banned + row * args.n;
  params += row * args.own_params;
  const int now = length[row], known = min(now, int(args.capacity)), ngram = int(params->ngram);
  // Windows of ngram - 1 tokens that equal the last such one, and have a token after them.
  for (int i = int(tid); ngram && i + ngram <= known; i += int(threads)) {
    int same = 0;
    while (same < ngram - 1 && x[i + same] == x[known - ngram + 1 + same])
      ++same;
    const long last = x[i + ngram - 1];
    if (same == ngram - 1 && last >= 0 && last < long(args.n))
      atomic_store_explicit(marks + last, now, memory_order_relaxed);
  }
  const int words = sequences[0];
  device const int* tokens = sequences + words + 2;
  for (int w = int(tid); w < words; w += int(threads)) {
    const int begin = sequences[w + 1], prefix = sequences[w + 2] - begin - 1;
    if (prefix > known)
      continue;
    int same = 0;
    while (same < prefix && x[known - prefix + same] == long(tokens[begin + same]))
      ++same;
    if (same == prefix)
      atomic_store_explicit(marks + tokens[begin + prefix], now, memory_order_relaxed);
  }
}

// Notes the tokens of the prompts, from column first[row] on.
[[kernel]] void sample_count_prompt(
    device const long* ids [[buffer(0)]],
    device const int* first [[buffer(1)]],
    device atomic_int* counts [[buffer(2)]],
    constant SampleArgs& args [[buffer(3)]],
    uint2 at [[thread_position_in_grid]]) {
  const long token = ids[at.y * args.capacity + at.x];
  if (int(at.x) >= first[at.y] && token >= 0 && token < long(args.n))
    atomic_fetch_or_explicit(counts + (at.y * args.n + uint(token)), 1, memory_order_relaxed);
}
