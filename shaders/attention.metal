// Attention over a KV cache with f32 scores and an online softmax. One family for decode (few queries) and prefill.
// Visible keys of a query are a range (causal, window, left padding) and, where bound, a mask; a query that sees nothing
// gives zeros. Grouped-query heads share every read of K and V.
// Here: decode. attention_prefill.metal: prefill.
#include "attention_scores.h"

// K, V: how keys and values are stored (kv_store.h). D, DV: their columns. R: query rows per threadgroup. S: simdgroups.
// L: lanes that read a key. M: element of the mask (uchar: keep; otherwise added to the score). A lane owns a key of
// each tile, and C columns of the output.
// foundry-lint: instance(attention_decode<half, uchar, DenseKv<half>, DenseKv<half>, 64, 64, 1, 4, 8>)
// foundry-lint: instance(attention_decode<float, float, DenseKv<float>, DenseKv<half>, 96, 80, 2, 8, 1>)
// foundry-lint: instance(attention_decode<half, half, Q8Kv<128>, Q4Kv<128>, 128, 128, 4, 4, 8>)
template <typename T, typename M, typename K, typename V, int D, int DV, int R, int S, int L>
[[kernel]] void attention_decode(
    device const T* q [[buffer(0)]],
    device const typename K::unit* k_cache [[buffer(1)]],
    device const typename V::unit* v_cache [[buffer(2)]],
    device const M* mask [[buffer(3), function_constant(has_mask)]],
    device const T* sinks [[buffer(4), function_constant(has_sinks)]],
    device const int* kv_start [[buffer(5)]],
    device const int* step [[buffer(6)]],
    device const int* rows [[buffer(7)]],
    device const int* table [[buffer(8)]],
    device T* y [[buffer(9)]],
    device float* partial_y [[buffer(10)]],
    device AttentionPartial* partials [[buffer(11)]],
    constant AttentionArgs& args [[buffer(12)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  constexpr int threads = S * 32;
  constexpr int C = Columns<V, DV>::each;
  using Join = Joining<R, S, DV>;
  constexpr int q_floats = R * D, p_floats = S * 2 * R * 32;
  // First the scaled queries and the softmax weights of each simdgroup, in the end what the simdgroups have gathered.
  threadgroup float4 shared[(Join::floats > q_floats + p_floats ? Join::floats : q_floats + p_floats) / 4];
  threadgroup AttentionPartial gathered[S][R];
  threadgroup float* q_tile = (threadgroup float*)shared;
  threadgroup float* p_tile = q_tile + q_floats + simdgroup * (2 * R * 32);

  const Place place = place_of<R>(args, tgid);
  const Filled keys = filled(args, step, rows, place.batch);
  const int start = args.has_kv_start ? kv_start[place.batch] : 0;
  if (place.split >= max(used_splits(args, keys.length), 1u)) return;

  for (int i = int(tid); i < R * D / 4; i += threads) {
    const int r = i / (D / 4), column = (i % (D / 4)) * 4;
    float v[4];
    load_row(q + place.query_row(args, r) + column, v);
    shared[r * (D / 4) + Scores<K, D, R, L>::place(i % (D / 4))] = float4(v[0], v[1], v[2], v[3]) * args.scale;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  KeyRange range[R];
  device const M* mask_row[R];
  for (int r = 0; r < R; ++r) {
    range[r] = visible_keys(args, keys, int(place.query(args, r)), start);
    mask_row[r] = has_mask ? mask + place.mask_row(args, r) + keys.shift : nullptr;
  }
  KeyRange all = seen_by_any(args, keys, place.query(args, 0), place.query(args, R - 1), start);
  const KeyRange mine = split_keys(args, place.split);
  all.begin = max(all.begin, mine.begin);
  all.end = min(all.end, mine.end);

  const KvRows<K> k_rows =
      rows_of<K>(args, k_cache, table, place.batch, args.k_batch, place.kv_head * args.k_head, args.k_token);
  const KvRows<V> v_rows =
      rows_of<V>(args, v_cache, table, place.batch, args.v_batch, place.kv_head * args.v_head, args.v_token);
  const uint own_column = (lane < uint(Columns<V, DV>::lanes) ? lane : 0) * C;
  float largest[R], sum[R], acc[R][C];
  for (int r = 0; r < R; ++r) {
    largest[r] = invisible;
    sum[r] = 0.0f;
    for (int c = 0; c < C; ++c)
      acc[r][c] = 0.0f;
  }

  int turn = 0;
  const int first_tile = all.begin / 32, own_tile = first_tile + (int(simdgroup) - first_tile % S + S) % S;
  for (int tile = own_tile * 32; tile < all.end; tile += 32 * S) {
    threadgroup float* weights = p_tile + (turn++ & 1) * (R * 32);  // two buffers: the one before may still be read
    const bool whole = tile >= all.begin && tile + 32 <= all.end;
    float score[R];
    Scores<K, D, R, L>::dot(k_rows, tile, whole, all, shared, lane, weights, score);
    bool above = false;
    for (int r = 0; r < R; ++r) {
      score[r] = finish_score(score[r], tile + int(lane), range[r], mask_row[r], args);
      above = above || score[r] > largest[r] + headroom;
    }
    if (simd_any(above)) {
      float maxima[R];
      for (int r = 0; r < R; ++r)
        maxima[r] = score[r];
      simd_maxima(maxima);
      for (int r = 0; r < R; ++r) {
        const float m = maxima[r] > largest[r] + headroom ? maxima[r] : largest[r], rescale = exp(largest[r] - m);
        largest[r] = m;
        sum[r] *= rescale;
        for (int c = 0; c < C; ++c)
          acc[r][c] *= rescale;
      }
    }
    for (int r = 0; r < R; ++r) {
      const float p = weight_of(score[r], largest[r]);
      sum[r] += p;
      weights[r * 32 + int(lane)] = p;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    if (whole)
      add_values<true, V>(v_rows, tile, all, own_column, weights, acc);
    else
      add_values<false, V>(v_rows, tile, all, own_column, weights, acc);
  }

  for (int r = 0; r < R; ++r) {
    sum[r] = simd_sum(sum[r]);
    if (lane == 0) {
      gathered[simdgroup][r].largest = largest[r];
      gathered[simdgroup][r].sum = sum[r];
    }
  }
  for (int first = 0; first < R; first += Join::rows) {
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the queries and weights, or the rows before, are done with
    for (int r = 0; r < Join::rows && lane < uint(Columns<V, DV>::lanes); ++r) {
      for (int c = 0; c < C; ++c)
        q_tile[(simdgroup * Join::rows + r) * Join::stride + lane * C + c] = acc[first + r][c];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Join::write(args, place, first, q_tile, gathered, sinks, y, partial_y, partials, int(tid));
  }
}

// Joins the splits of a query row in 32 columns: each simdgroup those that are its turn, then all of them. A split that
// saw nothing adds exactly zero, so splits of unseen keys don't change a result.
// foundry-lint: instance(attention_merge<half, 64>)
template <typename T, int DV>
[[kernel]] void attention_merge(
    device const float* partial_y [[buffer(0)]],
    device const AttentionPartial* partials [[buffer(1)]],
    device const T* sinks [[buffer(2), function_constant(has_sinks)]],
    device const int* step [[buffer(3)]],
    device const int* rows [[buffer(4)]],
    device T* y [[buffer(5)]],
    constant AttentionArgs& args [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  constexpr int S = attention_merge_simdgroups, U = 8;  // U splits in flight
  threadgroup float values[S][32];
  threadgroup AttentionPartial gathered[S];
  const uint row = group.x, column = min(group.y * 32 + lane, uint(DV) - 1);  // the last ones may be all the same
  const uint n_heads = args.n_kv_heads * args.group, batch = row / n_heads / args.q_len;
  const uint splits = max(used_splits(args, filled(args, step, rows, batch).length), 1u);
  device const AttentionPartial* row_partials = partials + row * args.splits;
  device const float* row_y = partial_y + row * args.splits * DV + column;
  AttentionPartial own = {invisible, 0.0f};
  float value = 0.0f;
  for (uint first = simdgroup; first < splits; first += S * U) {
    AttentionPartial of[U];
    float v[U], m = own.largest;
    for (int u = 0; u < U; ++u) {
      const uint s = min(first + u * S, splits - 1);
      of[u] = row_partials[s];
      v[u] = row_y[s * DV];
    }
    for (int u = 0; u < U; ++u) {
      of[u].largest = first + u * S < splits ? of[u].largest : invisible;
      m = max(m, of[u].largest);
    }
    const float rescale = exp(own.largest - m);
    own.largest = m;
    own.sum *= rescale;
    value *= rescale;
    for (int u = 0; u < U; ++u) {
      const float w = weight_of(of[u].largest, m);
      own.sum = fma(w, of[u].sum, own.sum);
      value = fma(w, v[u], value);
    }
  }
  values[simdgroup][lane] = value;
  if (lane == 0)
    gathered[simdgroup] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup > 0)
    return;
  float m = invisible, sum = 0.0f;
  for (int s = 0; s < S; ++s)
    m = max(m, gathered[s].largest);
  value = 0.0f;
  for (int s = 0; s < S; ++s) {
    const float w = exp(gathered[s].largest - m);
    sum = fma(w, gathered[s].sum, sum);
    value = fma(w, values[s][lane], value);
  }
  if (has_sinks)
    add_sink(sinks, row % n_heads, m, value, sum);
  y[row * DV + column] = T(sum == 0.0f ? 0.0f : value / sum);
}
