// Attention over a KV cache with f32 scores and an online softmax. One family for decode (few queries) and prefill.
// Visible keys of a query are a range (causal, window, left padding) and, where bound, a mask; a query that sees nothing
// gives zeros. Grouped-query heads share every read of K and V.
// Here: decode. attention_prefill.metal: prefill.
#include "attention/attention_heads.h"

// KStore, VStore: how keys and values are stored (kv_store.h). D, DV: their columns. ROWS: queries of a threadgroup.
// SIMDS: simdgroups. LANES: lanes that read a key. U: columns of the value queries, DV or none, whose products with the
// values are part of the scores. Mask: its element (uchar: keep; otherwise added to the score). A lane owns a key of
// each tile, and COLS columns of the output. Table .. VOut: of heads that are made first (attention_heads.h).
// foundry-lint: instance(attention_decode<half, uchar, DenseKv<half>, DenseKv<half>, 64, 64, 1, 4, 8>)
// foundry-lint: instance(attention_decode<float, float, DenseKv<float>, DenseKv<half>, 96, 80, 2, 8, 1>)
// foundry-lint: instance(attention_decode<bfloat, uchar, DenseKv<bfloat>, DenseKv<bfloat>, 512, 512, 2, 4, 8>)
// foundry-lint: instance(attention_decode<bfloat, uchar, DenseKv<bfloat>, DenseKv<bfloat>, 64, 512, 2, 4, 8, 512>)
// foundry-lint: instance(attention_decode<half, half, [FOUNDRY_KV_FORMATS]<128>, [FOUNDRY_KV_FORMATS]<128>, 128, 128, 4, 4, 8>)
// foundry-lint: instance(attention_decode<half, uchar, Q8Kv<128>, DenseKv<half>, 128, 128, 2, 4, 8, 0, float, Llama, Q8KvOut, DenseOut<half>>)
template <typename T, typename Mask, typename KStore, typename VStore, int D, int DV, int ROWS, int SIMDS, int LANES,
          int U = 0, typename Table = NotNew, typename Kind = NotNew, typename KOut = NotNew, typename VOut = NotNew>
[[kernel]] void attention_decode(
    device const T* q [[buffer(0)]],
    device typename CacheUnit<KStore, Table>::type* k_cache [[buffer(1)]],
    device typename CacheUnit<VStore, Table>::type* v_cache [[buffer(2)]],
    device const Mask* mask [[buffer(3), function_constant(has_mask)]],
    device const T* sinks [[buffer(4), function_constant(has_sinks)]],
    device const int* kv_start [[buffer(5)]],
    device const int* step [[buffer(6)]],
    device const int* rows [[buffer(7)]],
    device const int* table [[buffer(8)]],
    device T* y [[buffer(9)]],
    device float* partial_y [[buffer(10)]],
    device AttentionPartial* partials [[buffer(11)]],
    constant AttentionArgs& args [[buffer(12)]],
    device const T* value_queries [[buffer(13)]],
    device const T* k [[buffer(14), function_constant(has_new)]],
    device const T* v [[buffer(15), function_constant(has_new)]],
    device const typename TableOf<Table>::type* cosines [[buffer(16), function_constant(has_rope)]],
    device const typename TableOf<Table>::type* sines [[buffer(17), function_constant(has_rope)]],
    device const int* positions [[buffer(18), function_constant(has_new)]],
    device const T* q_norm [[buffer(19), function_constant(has_head_norm)]],
    device const T* k_norm [[buffer(20), function_constant(has_head_norm)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  constexpr int threads = SIMDS * 32;
  constexpr int COLS = Columns<VStore, DV>::each;
  using Merge = SplitMerge<ROWS, SIMDS, DV>;
  using Made = MadeHeads<T, Table, Kind, KOut, VOut>;
  constexpr int q_floats = ROWS * (D + U), own_floats = Made::floats(D, DV, 2 * ROWS * 32);
  constexpr int p_floats = SIMDS * own_floats;
  // First the scaled queries and each simdgroup's heads that it makes, then softmax weights, in the end what the
  // simdgroups have gathered.
  threadgroup float4 shared[(Merge::floats > q_floats + p_floats ? Merge::floats : q_floats + p_floats) / 4];
  threadgroup AttentionPartial gathered[SIMDS][ROWS];
  threadgroup float* q_tile = (threadgroup float*)shared;
  threadgroup float* p_tile = q_tile + q_floats + simdgroup * own_floats;

  const DecodeTile work = decode_tile<ROWS>(args, tgid);
  const KvExtent keys = kv_extent(args, step, rows, work.batch);
  const int start = args.has_kv_start ? kv_start[work.batch] : 0;
  if (work.split >= max(used_splits(args, keys.length), 1u)) return;

  const KeyRange mine = split_keys(args, work.split);
  const KvRows<KStore> k_rows =
      rows_of<KStore>(args, k_cache, table, work.batch, args.k_batch, work.kv_head * args.k_head, args.k_token);
  const KvRows<VStore> v_rows =
      rows_of<VStore>(args, v_cache, table, work.batch, args.v_batch, work.kv_head * args.v_head, args.v_token);
  const ScaledQueries<Scores<KStore, D, ROWS, LANES>> queries{q_tile, D, args.scale};
  const Made made{{q, k, v, cosines, sines, positions, q_norm, k_norm}};
  made.template make<ROWS, SIMDS, D, DV>(args, work, keys, mine, k_rows, v_rows, queries, p_tile, lane, simdgroup);
  const int used = work.n_rows - work.first_row;
  for (int i = used * D + int(tid); Made::any && i < ROWS * D; i += threads)
    q_tile[i] = 0.0f;
  for (int i = int(tid); !Made::any && i < ROWS * D / 4; i += threads) {
    const int r = i / (D / 4), column = (i % (D / 4)) * 4;
    float x[4];
    load_row(q + work.query_row(args, r) + column, x);
    const int to = r * (D / 4) + Scores<KStore, D, ROWS, LANES>::q_index(i % (D / 4));
    shared[to] = float4(x[0], x[1], x[2], x[3]) * args.scale;
  }
  threadgroup float4* u_tile = shared + ROWS * D / 4;
  for (int i = int(tid); U > 0 && i < ROWS * U / 4; i += threads) {
    const int r = i / (DV / 4), column = (i % (DV / 4)) * 4;
    float x[4];
    load_row(value_queries + work.value_query_row(args, r) + column, x);
    const int to = r * (DV / 4) + Scores<VStore, DV, ROWS, LANES>::q_index(i % (DV / 4));
    u_tile[to] = float4(x[0], x[1], x[2], x[3]) * args.scale;
  }
  threadgroup_barrier(Made::any ? mem_flags::mem_device | mem_flags::mem_threadgroup : mem_flags::mem_threadgroup);

  KeyRange range[ROWS];
  device const Mask* mask_row[ROWS];
  for (int r = 0; r < ROWS; ++r) {
    range[r] = visible_keys(args, keys, int(work.query(args, r)), start);
    mask_row[r] = has_mask ? mask + work.mask_row(args, r) + keys.shift : nullptr;
  }
  KeyRange all = seen_by_any(args, keys, work.query(args, 0), work.query(args, ROWS - 1), start);
  all.begin = max(all.begin, mine.begin);
  all.end = all.begin < min(all.end, mine.end) ? min(all.end, mine.end) : 0;  // what nobody sees may be NaN

  const uint own_column = (lane < uint(Columns<VStore, DV>::lanes) ? lane : 0) * COLS;
  float largest[ROWS], sum[ROWS], acc[ROWS][COLS];
  for (int r = 0; r < ROWS; ++r) {
    largest[r] = invisible;
    sum[r] = 0.0f;
    for (int c = 0; c < COLS; ++c)
      acc[r][c] = 0.0f;
  }

  int turn = 0;
  const int first_tile = all.begin / 32, own_tile = first_tile + (int(simdgroup) - first_tile % SIMDS + SIMDS) % SIMDS;
  for (int tile = own_tile * 32; tile < all.end; tile += 32 * SIMDS) {
    threadgroup float* weights = p_tile + (turn++ & 1) * (ROWS * 32);  // two buffers: the one before may still be read
    float score[ROWS];
    Scores<KStore, D, ROWS, LANES>::dot(k_rows, tile, all, shared, lane, weights, score);
    if (U > 0) {
      float more[ROWS];
      simdgroup_barrier(mem_flags::mem_threadgroup);  // the scores before are read from `weights`
      Scores<VStore, DV, ROWS, LANES>::dot(v_rows, tile, all, u_tile, lane, weights, more);
      for (int r = 0; r < ROWS; ++r)
        score[r] += more[r];
    }
    bool above = false;
    for (int r = 0; r < ROWS; ++r) {
      score[r] = finish_score(score[r], tile + int(lane), range[r], mask_row[r], args);
      above = above || score[r] > largest[r] + headroom;
    }
    if (simd_any(above)) {
      float maxima[ROWS];
      for (int r = 0; r < ROWS; ++r)
        maxima[r] = score[r];
      simd_maxima(maxima);
      for (int r = 0; r < ROWS; ++r) {
        const float m = maxima[r] > largest[r] + headroom ? maxima[r] : largest[r], rescale = exp(largest[r] - m);
        largest[r] = m;
        sum[r] *= rescale;
        for (int c = 0; c < COLS; ++c)
          acc[r][c] *= rescale;
      }
    }
    for (int r = 0; r < ROWS; ++r) {
      const float p = weight_of(score[r], largest[r]);
      sum[r] += p;
      weights[r * 32 + int(lane)] = p;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    add_values(v_rows, tile, all, own_column, weights, acc);
  }

  for (int r = 0; r < ROWS; ++r) {
    sum[r] = simd_sum(sum[r]);
    if (lane == 0) {
      gathered[simdgroup][r].largest = largest[r];
      gathered[simdgroup][r].sum = sum[r];
    }
  }
  for (int first = 0; first < ROWS; first += Merge::rows) {
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the queries and weights, or the rows before, are done with
    for (int r = 0; r < Merge::rows && lane < uint(Columns<VStore, DV>::lanes); ++r) {
      for (int c = 0; c < COLS; ++c)
        q_tile[(simdgroup * Merge::rows + r) * Merge::stride + lane * COLS + c] = acc[first + r][c];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Merge::write(args, work, first, q_tile, gathered, sinks, y, partial_y, partials, int(tid));
  }
}

// Joins splits of a row in order, as many as lanes at most, in the lane's column: a lane weighs a split.
template <typename T, int DV>
METAL_FUNC T join_in_order(device const AttentionPartial* partials, device const float* partial_y, uint splits,
                           device const T* sinks, uint head, uint lane) {
  AttentionPartial own = partials[min(lane, splits - 1)];
  own.largest = lane < splits ? own.largest : invisible;
  float m = simd_max(own.largest), sum = 0.0f, value = 0.0f;
  const float weight = weight_of(own.largest, m);
  for (uint s = 0; s < splits; ++s) {
    const float w = simd_shuffle(weight, ushort(s));
    sum = fma(w, simd_shuffle(own.sum, ushort(s)), sum);
    value = fma(w, partial_y[s * DV], value);
  }
  if (has_sinks)
    add_sink(sinks, head, m, value, sum);
  return T(sum == 0.0f ? 0.0f : value / sum);
}

// Joins the splits of a query row in 32 columns: each simdgroup those that are its turn, then all of them; with no more
// splits than simdgroups, the first one alone. A split that saw nothing adds exactly zero, so splits of unseen keys don't
// change a result.
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
  constexpr int SIMDS = attention_merge_simdgroups, UNROLL = 8;  // UNROLL splits in flight
  threadgroup float values[SIMDS][32];
  threadgroup AttentionPartial gathered[SIMDS];
  const uint row = group.x, column = min(group.y * 32 + lane, uint(DV) - 1);  // the last ones may be all the same
  const uint n_heads = args.n_kv_heads * args.group, batch = row / n_heads / args.q_len;
  const uint splits = max(used_splits(args, kv_extent(args, step, rows, batch).length), 1u);
  device const AttentionPartial* row_partials = partials + row * args.splits;
  device const float* row_y = partial_y + row * args.splits * DV + column;
  if (splits <= SIMDS) {
    if (simdgroup == 0)
      y[row * DV + column] = join_in_order<T, DV>(row_partials, row_y, splits, sinks, row % n_heads, lane);
    return;
  }
  AttentionPartial own = {invisible, 0.0f};
  float value = 0.0f;
  for (uint first = simdgroup; first < splits; first += SIMDS * UNROLL) {
    AttentionPartial of[UNROLL];
    float v[UNROLL], m = own.largest;
    for (int u = 0; u < UNROLL; ++u) {
      const uint s = min(first + u * SIMDS, splits - 1);
      of[u] = row_partials[s];
      v[u] = row_y[s * DV];
    }
    for (int u = 0; u < UNROLL; ++u) {
      of[u].largest = first + u * SIMDS < splits ? of[u].largest : invisible;
      m = max(m, of[u].largest);
    }
    const float rescale = exp(own.largest - m);
    own.largest = m;
    own.sum *= rescale;
    value *= rescale;
    for (int u = 0; u < UNROLL; ++u) {
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
  for (int s = 0; s < SIMDS; ++s)
    m = max(m, gathered[s].largest);
  value = 0.0f;
  for (int s = 0; s < SIMDS; ++s) {
    const float w = exp(gathered[s].largest - m);
    sum = fma(w, gathered[s].sum, sum);
    value = fma(w, values[s][lane], value);
  }
  if (has_sinks)
    add_sink(sinks, row % n_heads, m, value, sum);
  y[row * DV + column] = T(sum == 0.0f ? 0.0f : value / sum);
}

// The same where no row has more splits than that kernel has simdgroups: a thread makes a column of a row.
// foundry-lint: instance(attention_merge_few<half, 64>)
template <typename T, int DV>
[[kernel]] void attention_merge_few(
    device const float* partial_y [[buffer(0)]],
    device const AttentionPartial* partials [[buffer(1)]],
    device const T* sinks [[buffer(2), function_constant(has_sinks)]],
    device const int* step [[buffer(3)]],
    device const int* rows [[buffer(4)]],
    device T* y [[buffer(5)]],
    constant AttentionArgs& args [[buffer(6)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
  const uint n_heads = args.n_kv_heads * args.group, batch = row / n_heads / args.q_len, column = min(tid, uint(DV) - 1);
  const uint splits = max(used_splits(args, kv_extent(args, step, rows, batch).length), 1u);
  y[row * DV + column] = join_in_order<T, DV>(partials + row * args.splits, partial_y + row * args.splits * DV + column,
                                              splits, sinks, row % n_heads, lane);
}
