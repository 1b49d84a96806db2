// Attention over a KV cache with f32 scores and an online softmax. One family for decode (few queries) and prefill.
// Visible keys of a query are a range (causal, window, left padding) and, where bound, a mask; a query that sees nothing
// gives zeros. Grouped-query heads share every read of K and V.
#include "attention_scores.h"

#include <metal_simdgroup_matrix>

// ------------------------------------------------------------------------------------------------------------- decode

// D: head_dim. R: query rows per threadgroup. S: simdgroups. L: lanes that read a key. M: element of the mask (uchar:
// keep; otherwise added to the score). A lane owns a key of each tile, and D / 32 columns of the output.
// foundry-lint: instance(attention_decode<half, uchar, 64, 1, 4, 8>)
// foundry-lint: instance(attention_decode<float, float, 96, 2, 8, 1>)
template <typename T, typename M, int D, int R, int S, int L>
[[kernel]] void attention_decode(
    device const T* q [[buffer(0)]],
    device const T* k_cache [[buffer(1)]],
    device const T* v_cache [[buffer(2)]],
    device const M* mask [[buffer(3), function_constant(has_mask)]],
    device const int* kv_start [[buffer(4)]],
    device const int* step [[buffer(5)]],
    device T* y [[buffer(6)]],
    device float* partial_y [[buffer(7)]],
    device AttentionPartial* partials [[buffer(8)]],
    constant AttentionArgs& args [[buffer(9)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  constexpr int threads = S * 32;
  constexpr int C = D / 32;  // columns per lane
  constexpr int q_floats = R * D, p_floats = S * 2 * R * 32, merge_floats = S * R * D;
  // First the scaled queries and the softmax weights of each simdgroup, in the end what the simdgroups have gathered.
  threadgroup float4 shared[(merge_floats > q_floats + p_floats ? merge_floats : q_floats + p_floats) / 4];
  threadgroup AttentionPartial gathered[S][R];
  threadgroup float* q_tile = (threadgroup float*)shared;
  threadgroup float* p_tile = q_tile + q_floats + simdgroup * (2 * R * 32);

  const uint batch = tgid.z / args.n_kv_heads, kv_head = tgid.z % args.n_kv_heads, split = tgid.y;
  const int rows = int(args.q_len * args.group), first_row = int(tgid.x) * R;
  const Filled keys = filled(args, step);
  const int start = args.has_kv_start ? kv_start[batch] : 0;
  if (split >= used_splits(args, keys.length)) return;

  for (int i = int(tid); i < R * D / 4; i += threads) {
    const int row = min(first_row + i / (D / 4), rows - 1), column = (i % (D / 4)) * 4;
    const uint query = uint(row) / args.group, head = kv_head * args.group + uint(row) % args.group;
    float v[4];
    load_row(q + batch * args.q_batch + head * args.q_head + query * args.q_token + column, v);
    shared[i] = float4(v[0], v[1], v[2], v[3]) * args.scale;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  KeyRange range[R];
  device const M* mask_row[R];
  KeyRange all = {keys.length, 0};  // what any row of this threadgroup sees
  for (int r = 0; r < R; ++r) {
    const int row = min(first_row + r, rows - 1);
    const uint query = uint(row) / args.group, head = kv_head * args.group + uint(row) % args.group;
    range[r] = visible_keys(args, keys, int(query), start);
    mask_row[r] =
        has_mask ? mask + batch * args.mask_batch + head * args.mask_head + query * args.mask_token + keys.shift
                 : nullptr;
    all.begin = min(all.begin, range[r].begin);
    all.end = max(all.end, range[r].end);
  }
  const KeyRange mine = split_keys(args, split);
  all.begin = max(all.begin, mine.begin);
  all.end = min(all.end, mine.end);

  device const T* k_head = k_cache + batch * args.k_batch + kv_head * args.k_head;
  device const T* v_head = v_cache + batch * args.v_batch + kv_head * args.v_head + lane * C;
  float largest[R], sum[R], acc[R][C];
  for (int r = 0; r < R; ++r) {
    largest[r] = invisible;
    sum[r] = 0.0f;
    for (int c = 0; c < C; ++c)
      acc[r][c] = 0.0f;
  }

  int turn = 0;
  for (int tile = all.begin / 32; tile * 32 < all.end; ++tile) {
    if (tile % S == int(simdgroup)) {
      const int owned = Scores<T, D, R, L>::own_key(lane), key = tile * 32 + owned;
      float score[R];
      for (int r = 0; r < R; ++r)
        score[r] = 0.0f;
      Scores<T, D, R, L>::dot(k_head, args.k_token, tile * 32, keys.length - 1, shared, lane, score);
      threadgroup float* weights = p_tile + (turn & 1) * (R * 32);  // two buffers: one barrier a tile is enough
      float maxima[R];
      for (int r = 0; r < R; ++r) {
        score[r] = finish_score(score[r], key, range[r], mask_row[r], args);
        maxima[r] = score[r];
      }
      simd_maxima(maxima);
      for (int r = 0; r < R; ++r) {
        const float m = max(largest[r], maxima[r]);
        const float rescale = exp(largest[r] - m), p = weight_of(score[r], m);
        largest[r] = m;
        sum[r] = fma(sum[r], rescale, p);
        weights[r * 32 + owned] = p;
        for (int c = 0; c < C; ++c)
          acc[r][c] *= rescale;
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
      const int begin = max(all.begin - tile * 32, 0), end = min(all.end - tile * 32, 32);
      device const T* v_tile = v_head + uint(tile * 32) * args.v_token;
      if (begin == 0 && end == 32)
        add_values<true>(v_tile, args.v_token, begin, end, weights, acc);
      else
        add_values<false>(v_tile, args.v_token, begin, end, weights, acc);
      ++turn;
    }
  }

  for (int r = 0; r < R; ++r)
    sum[r] = simd_sum(sum[r]);
  threadgroup_barrier(mem_flags::mem_threadgroup);  // the queries and weights are no longer needed
  for (int r = 0; r < R; ++r) {
    if (lane == 0) {
      gathered[simdgroup][r].largest = largest[r];
      gathered[simdgroup][r].sum = sum[r];
    }
    for (int c = 0; c < C; ++c)
      q_tile[(simdgroup * R + r) * D + lane * C + c] = acc[r][c];
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);

  for (int i = int(tid); i < R * D; i += threads) {
    const int r = i / D, column = i % D, row = first_row + r;
    float m = invisible, total = 0.0f, value = 0.0f;
    for (int s = 0; s < S; ++s)
      m = max(m, gathered[s][r].largest);
    for (int s = 0; s < S; ++s) {
      const float w = exp(gathered[s][r].largest - m);
      total = fma(w, gathered[s][r].sum, total);
      value = fma(w, q_tile[(s * R + r) * D + column], value);
    }
    if (row < rows) {
      const uint query = uint(row) / args.group, head = kv_head * args.group + uint(row) % args.group;
      const uint n_heads = args.n_kv_heads * args.group;
      const uint out_row = (batch * args.q_len + query) * n_heads + head;
      if (args.splits == 1) {
        y[out_row * D + column] = T(total == 0.0f ? 0.0f : value / total);
      } else {
        partial_y[(out_row * args.splits + split) * D + column] = value;
        if (column == 0) {
          partials[out_row * args.splits + split].largest = m;
          partials[out_row * args.splits + split].sum = total;
        }
      }
    }
  }
}

// Joins the splits of a query row in 32 columns: each simdgroup those that are its turn, then all of them. A split that
// saw nothing adds exactly zero, so splits of unseen keys don't change a result.
// foundry-lint: instance(attention_merge<half, 64>)
template <typename T, int D>
[[kernel]] void attention_merge(
    device const float* partial_y [[buffer(0)]],
    device const AttentionPartial* partials [[buffer(1)]],
    device const int* step [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant AttentionArgs& args [[buffer(4)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  constexpr int S = attention_merge_simdgroups, U = 4;  // U splits in flight
  threadgroup float values[S][32], sums[S][32];
  const uint row = group.x, column = group.y * 32 + lane, splits = used_splits(args, filled(args, step).length);
  device const AttentionPartial* row_partials = partials + row * args.splits;
  device const float* row_y = partial_y + row * args.splits * D + column;
  float m = invisible, sum = 0.0f, value = 0.0f;
  for (uint s = lane; s < splits; s += 32)
    m = max(m, row_partials[s].largest);
  m = simd_max(m);
  for (uint first = simdgroup; first < splits; first += S * U) {
    float w[U], of[U], v[U];
    for (int u = 0; u < U; ++u) {
      const uint s = min(first + u * S, splits - 1);
      w[u] = first + u * S < splits ? exp(row_partials[s].largest - m) : 0.0f;
      of[u] = row_partials[s].sum;
      v[u] = row_y[s * D];
    }
    for (int u = 0; u < U; ++u) {
      sum = fma(w[u], of[u], sum);
      value = fma(w[u], v[u], value);
    }
  }
  values[simdgroup][lane] = value;
  sums[simdgroup][lane] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup > 0)
    return;
  for (int s = 1; s < S; ++s) {
    sum += sums[s][lane];
    value += values[s][lane];
  }
  y[row * D + column] = T(sum == 0.0f ? 0.0f : value / sum);
}

// ------------------------------------------------------------------------------------------------------------ prefill

// Keys [tile, tile + BK) of K or V to threadgroup memory; zeros for keys that no row sees (their memory may hold anything).
template <typename T, int D, int BK, int LD>
METAL_FUNC void stage_keys(device const T* head, uint token_stride, int tile, KeyRange all, threadgroup T* out, uint tid) {
  for (int i = int(tid); i < BK * D / 4; i += int(attention_prefill_simdgroups) * 32) {
    const int key = tile + i / (D / 4), column = (i % (D / 4)) * 4;
    threadgroup vec<T, 4>& to = *(threadgroup vec<T, 4>*)(out + (i / (D / 4)) * LD + column);
    if (key >= all.begin && key < all.end) {
      device const T* from = head + uint(key) * token_stride + column;
      if (aligned)
        to = *(device const vec<T, 4>*)from;
      else
        to = vec<T, 4>(from[0], from[1], from[2], from[3]);
    } else {
      to = vec<T, 4>(T(0.0f));
    }
  }
}

// A simdgroup owns 8 query rows. Scores, weights and output live in 8x8 fragments, in which a lane holds two neighbouring
// columns of one row: lanes of the same row differ in bits 0 and 3 only.
// foundry-lint: instance(attention_prefill<half, float, 64>)
template <typename T, typename M, int D>
[[kernel]] void attention_prefill(
    device const T* q [[buffer(0)]],
    device const T* k_cache [[buffer(1)]],
    device const T* v_cache [[buffer(2)]],
    device const M* mask [[buffer(3), function_constant(has_mask)]],
    device const int* kv_start [[buffer(4)]],
    device const int* step [[buffer(5)]],
    device T* y [[buffer(6)]],
    constant AttentionArgs& args [[buffer(7)]],
    uint2 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  constexpr int BK = D * int(sizeof(T)) <= 256 ? 32 : 16;  // at most 17 KiB of threadgroup memory
  constexpr int LD = D + 16 / int(sizeof(T));              // padded rows: no bank conflicts between the 8 rows of a fragment
  threadgroup vec<T, 4> staged[BK * LD / 4];
  threadgroup T* tile_memory = (threadgroup T*)staged;

  const uint batch = tgid.y / args.n_kv_heads, kv_head = tgid.y % args.n_kv_heads;
  const int rows = int(args.q_len * args.group), first_row = int(tgid.x * attention_prefill_rows);
  const Filled keys = filled(args, step);
  const int start = args.has_kv_start ? kv_start[batch] : 0;
  const uint quad = lane / 4;
  const int fragment_row = int((quad & 4) + (lane / 2) % 4), fragment_column = int((quad & 2) * 2 + (lane % 2) * 2);

  const int row = first_row + int(simdgroup) * 8 + fragment_row, safe_row = min(row, rows - 1);
  const uint query = uint(safe_row) / args.group, head = kv_head * args.group + uint(safe_row) % args.group;
  const KeyRange range = visible_keys(args, keys, int(query), start);
  const int last_row = min(first_row + int(attention_prefill_rows), rows) - 1;
  KeyRange all;  // what any row of this threadgroup sees
  all.begin = visible_keys(args, keys, first_row / int(args.group), start).begin;
  all.end = visible_keys(args, keys, last_row / int(args.group), start).end;
  device const M* mask_row =
      has_mask ? mask + batch * args.mask_batch + head * args.mask_head + query * args.mask_token + keys.shift
               : nullptr;

  device const T* q_row = q + batch * args.q_batch + head * args.q_head + query * args.q_token;
  simdgroup_matrix<T, 8, 8> q_fragment[D / 8];
  simdgroup_matrix<float, 8, 8> acc[D / 8];
  for (int d = 0; d < D / 8; ++d) {
    q_fragment[d].thread_elements()[0] = q_row[8 * d + fragment_column];
    q_fragment[d].thread_elements()[1] = q_row[8 * d + fragment_column + 1];
    acc[d] = simdgroup_matrix<float, 8, 8>(0.0f);
  }

  float largest = invisible, sum = 0.0f;  // sum: of this lane's columns only, until the end
  device const T* k_head = k_cache + batch * args.k_batch + kv_head * args.k_head;
  device const T* v_head = v_cache + batch * args.v_batch + kv_head * args.v_head;
  for (int tile = (all.begin / BK) * BK; tile < all.end; tile += BK) {
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the previous V tile has been read
    stage_keys<T, D, BK, LD>(k_head, args.k_token, tile, all, tile_memory, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    simdgroup_matrix<float, 8, 8> score[BK / 8];
    for (int n = 0; n < BK / 8; ++n) {
      score[n] = simdgroup_matrix<float, 8, 8>(0.0f);
      for (int d = 0; d < D / 8; ++d) {
        simdgroup_matrix<T, 8, 8> k;
        simdgroup_load(k, tile_memory + n * 8 * LD + d * 8, LD, ulong2(0, 0), true);
        simdgroup_multiply_accumulate(score[n], q_fragment[d], k, score[n]);
      }
    }

    float m = largest;
    for (int n = 0; n < BK / 8; ++n) {
      for (int e = 0; e < 2; ++e) {
        const int key = tile + 8 * n + fragment_column + e;
        const float s = finish_score(score[n].thread_elements()[e] * args.scale, key, range, mask_row, args);
        score[n].thread_elements()[e] = s;
        m = max(m, s);
      }
    }
    m = max(m, simd_shuffle_xor(m, 1));
    m = max(m, simd_shuffle_xor(m, 8));
    const float rescale = exp(largest - m);
    largest = m;
    sum *= rescale;
    for (int n = 0; n < BK / 8; ++n) {
      for (int e = 0; e < 2; ++e) {
        const float p = weight_of(score[n].thread_elements()[e], m);
        score[n].thread_elements()[e] = p;
        sum += p;
      }
    }
    for (int d = 0; d < D / 8; ++d) {
      acc[d].thread_elements()[0] *= rescale;
      acc[d].thread_elements()[1] *= rescale;
    }

    threadgroup_barrier(mem_flags::mem_threadgroup);  // the K tile has been read
    stage_keys<T, D, BK, LD>(v_head, args.v_token, tile, all, tile_memory, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int n = 0; n < BK / 8; ++n) {
      for (int d = 0; d < D / 8; ++d) {
        simdgroup_matrix<T, 8, 8> v;
        simdgroup_load(v, tile_memory + n * 8 * LD + d * 8, LD);
        simdgroup_multiply_accumulate(acc[d], score[n], v, acc[d]);
      }
    }
  }

  sum += simd_shuffle_xor(sum, 1);
  sum += simd_shuffle_xor(sum, 8);
  if (row < rows) {
    const uint n_heads = args.n_kv_heads * args.group;
    device T* y_row = y + ((batch * args.q_len + query) * n_heads + head) * D + fragment_column;
    for (int d = 0; d < D / 8; ++d) {
      for (int e = 0; e < 2; ++e)
        y_row[8 * d + e] = T(sum == 0.0f ? 0.0f : acc[d].thread_elements()[e] / sum);
    }
  }
}
