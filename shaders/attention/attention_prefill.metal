// Attention of many queries: tiles of keys and values in threadgroup memory, products by simdgroup_matrix. What a query
// sees and how its result is made: as in attention_decode.metal.
#include "attention/attention_scores.h"
#include "common/matrix_pairs.h"

#include <metal_simdgroup_matrix>

// What keys and values are staged as: their own type if it is q's; packed ones as floats, so that they lose nothing.
template <typename T, typename Store> struct Staged { using type = float; };
template <typename T> struct Staged<T, DenseKv<T>> { using type = T; };

// Keys [tile, tile + BK) of K or V to threadgroup memory; zeros for keys that no row sees (their memory may hold
// anything).
template <typename Store, typename Element, int D, int BK, int LD>
METAL_FUNC void stage_keys(thread const KvRows<Store>& rows, int tile, KeyRange all, threadgroup Element* out,
                           uint tid) {
  for (int i = int(tid); i < BK * D / 4; i += int(attention_prefill_simdgroups) * 32) {
    const int key = tile + i / (D / 4), column = (i % (D / 4)) * 4;
    float v[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (key >= all.begin && key < all.end)
      Store::load(rows.row(key, paged), uint(column), aligned, v);
    const vec<Element, 4> staged = vec<Element, 4>(Element(v[0]), Element(v[1]), Element(v[2]), Element(v[3]));
    *(threadgroup vec<Element, 4>*)(out + (i / (D / 4)) * LD + column) = staged;
  }
}

// A simdgroup owns 8 query rows. Scores, weights and output live in 8x8 fragments, in which a lane holds two neighbouring
// columns of one row: lanes of the same row differ in bits 0 and 3 only. SHARE neighbouring simdgroups have the same
// rows: each multiplies its part of the columns of q and K, and of V. Loops over fragments are unrolled: one whose
// number isn't known lies in memory, or behind a chain of selects.
// foundry-lint: instance(attention_prefill<half, float, DenseKv<half>, DenseKv<half>, 64, 64>)
// foundry-lint: instance(attention_prefill<float, uchar, DenseKv<float>, DenseKv<float>, 512, 512>)
// foundry-lint: instance(attention_prefill<float, uchar, [FOUNDRY_KV_FORMATS]<80>, DenseKv<bfloat>, 80, 112>)
template <typename T, typename Mask, typename KStore, typename VStore, int D, int DV>
[[kernel]] void attention_prefill(
    device const T* q [[buffer(0)]],
    device const typename KStore::unit* k_cache [[buffer(1)]],
    device const typename VStore::unit* v_cache [[buffer(2)]],
    device const Mask* mask [[buffer(3), function_constant(has_mask)]],
    device const T* sinks [[buffer(4), function_constant(has_sinks)]],
    device const int* kv_start [[buffer(5)]],
    device const int* step [[buffer(6)]],
    device const int* rows [[buffer(7)]],
    device const int* table [[buffer(8)]],
    device T* y [[buffer(9)]],
    constant AttentionArgs& args [[buffer(10)]],
    uint2 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  using KE = typename Staged<T, KStore>::type;
  using VE = typename Staged<T, VStore>::type;
  constexpr int K_bytes = D * int(sizeof(KE)), V_bytes = DV * int(sizeof(VE));
  constexpr int most_bytes = K_bytes > V_bytes ? K_bytes : V_bytes;
  constexpr int BK = most_bytes <= 256 ? 32 : most_bytes <= 1024 ? 16 : 8;  // at most 17 KiB of threadgroup memory
  constexpr int K_LD = D + 16 / int(sizeof(KE));  // padded rows: no bank conflicts between the 8 rows of a fragment
  constexpr int V_LD = DV + 16 / int(sizeof(VE));
  constexpr int tile_bytes = BK * (most_bytes + 16);
  constexpr int SHARE = int(attention_prefill_sharing(D > DV ? D : DV));
  constexpr int q_blocks = D / 8 / SHARE, v_blocks = DV / 8 / SHARE;  // 8x8, of a simdgroup
  static_assert(D / 8 % SHARE == 0 && DV / 8 % SHARE == 0, "columns are shared evenly");
  threadgroup float4 staged[tile_bytes / 16];
  threadgroup float2 parts[SHARE > 1 ? int(attention_prefill_simdgroups) * BK / 8 * 32 : 1];  // of scores
  threadgroup KE* k_tile = (threadgroup KE*)staged;
  threadgroup VE* v_tile = (threadgroup VE*)staged;

  constexpr int rows_together = int(attention_prefill_rows(D > DV ? D : DV));
  const uint batch = tgid.y / args.n_kv_heads, kv_head = tgid.y % args.n_kv_heads;
  const int n_rows = int(args.q_len * args.group), first_row = int(tgid.x) * rows_together;
  const KvExtent keys = kv_extent(args, step, rows, batch);
  const int start = args.has_kv_start ? kv_start[batch] : 0;
  const Fragment own = fragment_of(lane);

  const int share = int(simdgroup) % SHARE, q_column = share * q_blocks * 8, v_column = share * v_blocks * 8;
  const int row = first_row + int(simdgroup) / SHARE * 8 + own.row, safe_row = min(row, n_rows - 1);
  const uint query = uint(safe_row) / args.group, head = kv_head * args.group + uint(safe_row) % args.group;
  const KeyRange range = visible_keys(args, keys, int(query), start);
  const int last_row = min(first_row + rows_together, n_rows) - 1;
  const KeyRange all = seen_by_any(args, keys, uint(first_row) / args.group, uint(last_row) / args.group, start);
  device const Mask* mask_row =
      has_mask ? mask + batch * args.mask_batch + head * args.mask_head + query * args.mask_token + keys.shift
               : nullptr;

  device const T* q_row = q + batch * args.q_batch + head * args.q_head + query * args.q_token;
  simdgroup_matrix<T, 8, 8> q_fragment[q_blocks];
  simdgroup_matrix<float, 8, 8> acc[v_blocks];
#pragma unroll
  for (int d = 0; d < q_blocks; ++d) {
    q_fragment[d].thread_elements()[0] = q_row[q_column + 8 * d + own.column];
    q_fragment[d].thread_elements()[1] = q_row[q_column + 8 * d + own.column + 1];
  }
#pragma unroll
  for (int d = 0; d < v_blocks; ++d)
    acc[d] = simdgroup_matrix<float, 8, 8>(0.0f);

  float largest = invisible, sum = 0.0f;  // sum: of this lane's columns only, until the end
  const KvRows<KStore> k_rows =
      rows_of<KStore>(args, k_cache, table, batch, args.k_batch, kv_head * args.k_head, args.k_token);
  const KvRows<VStore> v_rows =
      rows_of<VStore>(args, v_cache, table, batch, args.v_batch, kv_head * args.v_head, args.v_token);
  for (int tile = (all.begin / BK) * BK; tile < all.end; tile += BK) {
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the previous V tile has been read
    stage_keys<KStore, KE, D, BK, K_LD>(k_rows, tile, all, k_tile, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);

    // Sums are short and then joined, here of 32 columns, below of a tile's keys: a long one would be off by more.
    simdgroup_matrix<float, 8, 8> score[BK / 8];
#pragma unroll
    for (int n = 0; n < BK / 8; ++n) {
      score[n] = simdgroup_matrix<float, 8, 8>(0.0f);
#pragma unroll
      for (int first = 0; first < q_blocks; first += 4) {
        simdgroup_matrix<float, 8, 8> part(0.0f);
#pragma unroll
        for (int d = first; d < min(first + 4, q_blocks); ++d) {
          simdgroup_matrix<KE, 8, 8> k;
          simdgroup_load(k, k_tile + n * 8 * K_LD + q_column + d * 8, K_LD, ulong2(0, 0), true);
          simdgroup_multiply_accumulate(part, q_fragment[d], k, part);
        }
        score[n].thread_elements()[0] += part.thread_elements()[0];
        score[n].thread_elements()[1] += part.thread_elements()[1];
      }
    }

    if (SHARE > 1) {
      threadgroup float2* own_parts = parts + simdgroup * (BK / 8 * 32) + lane;
#pragma unroll
      for (int n = 0; n < BK / 8; ++n)
        own_parts[n * 32] = float2(score[n].thread_elements()[0], score[n].thread_elements()[1]);
      threadgroup_barrier(mem_flags::mem_threadgroup);
      threadgroup const float2* other_parts = parts + (simdgroup ^ 1) * (BK / 8 * 32) + lane;
#pragma unroll
      for (int n = 0; n < BK / 8; ++n)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          score[n].thread_elements()[e] += other_parts[n * 32][e];
    }

    float m = largest;
#pragma unroll
    for (int n = 0; n < BK / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int key = tile + 8 * n + own.column + e;
        const float s = finish_score(score[n].thread_elements()[e] * args.scale, key, range, mask_row, args);
        score[n].thread_elements()[e] = s;
        m = max(m, s);
      }
    }
    m = max(m, simd_shuffle_xor(m, 1));
    m = max(m, simd_shuffle_xor(m, 8));
    const float rescale = exp(largest - m);
    largest = m;
    float tile_sum = 0.0f;
#pragma unroll
    for (int n = 0; n < BK / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float p = weight_of(score[n].thread_elements()[e], m);
        score[n].thread_elements()[e] = p;
        tile_sum += p;
      }
    }
    sum = fma(sum, rescale, tile_sum);

    threadgroup_barrier(mem_flags::mem_threadgroup);  // the K tile has been read
    stage_keys<VStore, VE, DV, BK, V_LD>(v_rows, tile, all, v_tile, tid);
    threadgroup_barrier(mem_flags::mem_threadgroup);
#pragma unroll
    for (int d = 0; d < v_blocks; ++d) {
      simdgroup_matrix<float, 8, 8> part(0.0f);
#pragma unroll
      for (int n = 0; n < BK / 8; ++n) {
        simdgroup_matrix<VE, 8, 8> v;
        simdgroup_load(v, v_tile + n * 8 * V_LD + v_column + d * 8, V_LD);
        simdgroup_multiply_accumulate(part, score[n], v, part);
      }
#pragma unroll
      for (int e = 0; e < 2; ++e)
        acc[d].thread_elements()[e] = fma(acc[d].thread_elements()[e], rescale, part.thread_elements()[e]);
    }
  }

  sum += simd_shuffle_xor(sum, 1);
  sum += simd_shuffle_xor(sum, 8);
  if (row < n_rows) {
    const uint n_heads = args.n_kv_heads * args.group;
    device T* y_row = y + ((batch * args.q_len + query) * n_heads + head) * DV + v_column + own.column;
    float of_keys = 1.0f;  // what a sink leaves of the weights
    if (has_sinks)
      add_sink(sinks, head, largest, of_keys, sum);
#pragma unroll
    for (int d = 0; d < v_blocks; ++d) {
#pragma unroll
      for (int e = 0; e < 2; ++e)
        y_row[8 * d + e] = T(sum == 0.0f ? 0.0f : acc[d].thread_elements()[e] * of_keys / sum);
    }
  }
}
