// Attention of few queries by products of 8x8 matrices, for q of 16 bits: eight query rows (or sixteen) share every
// reading of keys and values, which go from memory into the products without a stop in threadgroup memory. What a query
// sees, which simdgroup and split a key belongs to, and how splits are joined: as in attention_decode.metal. For GPUs
// whose matrix units outrun their other ones; elsewhere the rows that a group does not fill cost more than is won.
//
// Scores are a matrix of keys by queries, the output one of columns by queries: so a lane has the same two queries in
// both, and the weights that scores become multiply values as they lie. Which columns of q and K a step multiplies is
// any, as long as it is the same ones: those that a lane reads together.
#include "attention/attention_scores.h"
#include "common/matrix_pairs.h"

// Sixteen keys: a lane has eight columns of each 32 of the rows `own.row` and `own.row + 8`.
template <typename T, typename KStore, int D> struct KeyBlock {
  vec<T, 2> pairs[2][D / 32][4];
  float scale[2][(D + 31) / 32];

  // Unseen keys are read as seen ones: their scores are not used.
  METAL_FUNC void read(thread const KvRows<KStore>& rows, int block, KeyRange seen, Fragment own,
                       constant AttentionArgs& args) thread {
    for (int i = 0; i < 2; ++i) {
      const int key = min(max(block + 8 * i + own.row, seen.begin), seen.end - 1);
      device const typename KStore::unit* row = rows.row(key, paged);
      for (int j = 0; j < D / 32; ++j)
        KStore::load_pairs(row, uint(32 * j + own.column * 4), aligned, args.two_1024, pairs[i][j]);
      KStore::load_scales(row, scale[i]);
    }
  }

  // dots[i][e]: key own.row + 8 * i times query own.column + e.
  METAL_FUNC void multiply(thread const simdgroup_matrix<T, 8, 8> (&q)[D / 16][2],
                           thread float (&dots)[2][2]) const thread {
    simdgroup_matrix<float, 8, 8> total[2], part[2];
    for (int i = 0; i < 2; ++i)
      total[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (int j = 0; j < D / 32; ++j) {
      for (int i = 0; i < 2; ++i) {
        part[i] = total[i];
        if (KStore::packed) part[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      }
      for (int h = 0; h < 2; ++h) {
        simdgroup_matrix<T, 8, 8> keys[2][2];
        for (int i = 0; i < 2; ++i)
          for (int f = 0; f < 2; ++f)
            for (int e = 0; e < 2; ++e)
              keys[i][f].thread_elements()[e] = pairs[i][j][2 * h + f][e];
        multiply_accumulate_2x2(part, keys, q[2 * j + h]);
      }
      for (int i = 0; i < 2; ++i)
        for (int e = 0; e < 2; ++e)
          total[i].thread_elements()[e] =
              KStore::packed ? fma(scale[i][j], part[i].thread_elements()[e], total[i].thread_elements()[e])
                        : part[i].thread_elements()[e];
    }
    for (int i = 0; i < 2; ++i)
      for (int e = 0; e < 2; ++e)
        dots[i][e] = total[i].thread_elements()[e];
  }
};

// The values of sixteen keys: a lane has WIDTH columns of each 8 * WIDTH of the rows `own.column`, + 1, + 8 and + 9; and
// the scales of rows `own.row` and `own.row + 8`, whose weights it has.
template <typename T, typename VStore, int DV> struct ValueBlock {
  FOUNDRY_CONST int WIDTH = VStore::packed || DV % 64 != 0 ? 4 : 8; // columns that have one scale, or 16 bytes
  using E = typename VStore::template factor<T>;
  vec<E, 2> pairs[DV / (8 * WIDTH)][2][2][WIDTH / 2];
  float scale[2][(DV + 31) / 32];

  // Unseen keys are read as seen ones: they weigh nothing.
  METAL_FUNC void read(thread const KvRows<VStore>& rows, int block, KeyRange seen, Fragment own,
                       constant AttentionArgs& args) thread {
    for (int i = 0; i < 2; ++i) {
      const int key = block + 8 * i;
      if (VStore::packed)
        VStore::load_scales(rows.row(min(max(key + own.row, seen.begin), seen.end - 1), paged), scale[i]);
      for (int e = 0; e < 2; ++e) {
        const int seen_key = min(max(key + own.column + e, seen.begin), seen.end - 1);
        device const typename VStore::unit* row = rows.row(seen_key, paged);
        for (int j = 0; j < DV / (8 * WIDTH); ++j)
          VStore::load_pairs(row, uint((8 * j + own.row) * WIDTH), aligned, args.two_1024, pairs[j][i][e]);
      }
    }
  }

  // Adds them to the sums of two queries by weights[i][e], of key own.row + 8 * i for query own.column + e.
  METAL_FUNC void add(thread const float (&weights)[2][2],
                      thread simdgroup_matrix<float, 8, 8> (&acc)[DV / 16][2]) const thread {
    for (int j = 0; j < DV / (8 * WIDTH); ++j) {
      simdgroup_matrix<E, 8, 8> most[2], rest[2];  // a weight as a sum of two
      for (int i = 0; i < 2; ++i) {
        vec<E, 2> upper, lower;
        split(float2(weights[i][0], weights[i][1]) * (VStore::packed ? scale[i][j] : 1.0f), upper, lower);
        for (int e = 0; e < 2; ++e) {
          most[i].thread_elements()[e] = upper[e];
          rest[i].thread_elements()[e] = lower[e];
        }
      }
      for (int c = 0; c < WIDTH / 2; ++c) {
        simdgroup_matrix<E, 8, 8> values[2][2];
        for (int f = 0; f < 2; ++f)
          for (int i = 0; i < 2; ++i)
            for (int e = 0; e < 2; ++e)
              values[f][i].thread_elements()[e] = pairs[j][i][e][c][f];
        multiply_accumulate_2x2(acc[j * (WIDTH / 2) + c], values, most);
        multiply_accumulate_2x2(acc[j * (WIDTH / 2) + c], values, rest);
      }
    }
  }

  // The column of element `d` of a lane's sums.
  static METAL_FUNC int column(int d, Fragment own) {
    return d / WIDTH * 8 * WIDTH + own.row * WIDTH + VStore::paired(d % WIDTH / 2, d % 2);
  }
};

// BLOCKS: of eight query rows; all else as in attention_decode.
// foundry-lint: instance(attention_decode_matrix<half, uchar, DenseKv<half>, DenseKv<half>, 64, 64, 1, 4>)
// foundry-lint: instance(attention_decode_matrix<bfloat, float, [FOUNDRY_KV_FORMATS]<128>, [FOUNDRY_KV_FORMATS]<96>, 128, 96, 2, 4>)
template <typename T, typename Mask, typename KStore, typename VStore, int D, int DV, int BLOCKS, int SIMDS>
[[kernel]] void attention_decode_matrix(
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
    device float* partial_y [[buffer(10)]],
    device AttentionPartial* partials [[buffer(11)]],
    constant AttentionArgs& args [[buffer(12)]],
    uint3 tgid [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  constexpr int ROWS = 8 * BLOCKS;
  using Merge = SplitMerge<ROWS, SIMDS, DV>;
  threadgroup float4 shared[Merge::floats / 4];
  threadgroup AttentionPartial gathered[SIMDS][ROWS];

  const DecodeTile work = decode_tile<ROWS>(args, tgid);
  const KvExtent keys = kv_extent(args, step, rows, work.batch);
  const int start = args.has_kv_start ? kv_start[work.batch] : 0;
  if (work.split >= max(used_splits(args, keys.length), 1u)) return;

  KeyRange all = seen_by_any(args, keys, work.query(args, 0), work.query(args, ROWS - 1), start);
  const KeyRange mine = split_keys(args, work.split);
  all.begin = max(all.begin, mine.begin);
  all.end = min(all.end, mine.end);
  if (all.begin >= all.end) all.end = 0;  // not one key could be read

  const KvRows<KStore> k_rows =
      rows_of<KStore>(args, k_cache, table, work.batch, args.k_batch, work.kv_head * args.k_head, args.k_token);
  const KvRows<VStore> v_rows =
      rows_of<VStore>(args, v_cache, table, work.batch, args.v_batch, work.kv_head * args.v_head, args.v_token);
  const Fragment own = fragment_of(lane);
  const int first_tile = all.begin / 32, own_tile = first_tile + (int(simdgroup) - first_tile % SIMDS + SIMDS) % SIMDS;
  int block = own_tile * 32;
  // Dense keys are on their way while the block before is finished. Packed ones, which have to be unpacked, come with
  // their values.
  KeyBlock<T, KStore, D> key_block;
  if (!KStore::packed && block < all.end)
    key_block.read(k_rows, block, all, own, args);

  KeyRange range[BLOCKS][2];  // of this lane's queries
  device const Mask* mask_row[BLOCKS][2];
  simdgroup_matrix<T, 8, 8> q_part[BLOCKS][D / 16][2];
  float largest[BLOCKS][2], sum[BLOCKS][2];  // sum: of this lane's keys only, until the end
  simdgroup_matrix<float, 8, 8> acc[BLOCKS][DV / 16][2];
  for (int b = 0; b < BLOCKS; ++b) {
    for (int e = 0; e < 2; ++e) {
      const int r = 8 * b + own.column + e;
      range[b][e] = visible_keys(args, keys, int(work.query(args, r)), start);
      mask_row[b][e] = has_mask ? mask + work.mask_row(args, r) + keys.shift : nullptr;
      for (int j = 0; j < D / 32; ++j) {
        vec<T, 2> x[4];
        DenseKv<T>::load_pairs(q + work.query_row(args, r), uint(32 * j + own.row / 2 * 8), aligned, args.two_1024, x);
        for (int f = 0; f < 4; ++f) {
          const int even = KStore::paired(f, 0), odd = KStore::paired(f, 1);
          q_part[b][2 * j + f / 2][f % 2].thread_elements()[e] =
              own.row % 2 == 0 ? x[even / 2][even % 2] : x[odd / 2][odd % 2];
        }
      }
      largest[b][e] = invisible;
      sum[b][e] = 0.0f;
    }
    for (int d = 0; d < DV / 8; ++d)
      acc[b][d / 2][d % 2] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }

  while (block < all.end) {
    if (KStore::packed)
      key_block.read(k_rows, block, all, own, args);
    ValueBlock<T, VStore, DV> values;
    values.read(v_rows, block, all, own, args);
    float score[BLOCKS][2][2];  // of keys own.row and own.row + 8, then their weights
    bool above = false;
    for (int b = 0; b < BLOCKS; ++b) {
      key_block.multiply(q_part[b], score[b]);
      for (int i = 0; i < 2; ++i) {
        for (int e = 0; e < 2; ++e) {
          score[b][i][e] = finish_score(score[b][i][e] * args.scale, block + 8 * i + own.row, range[b][e],
                                        mask_row[b][e], args);
          above = above || score[b][i][e] > largest[b][e] + headroom;
        }
      }
    }
    block = block % 32 == 0 ? block + 16 : block + 32 * SIMDS - 16;
    if (!KStore::packed && block < all.end)
      key_block.read(k_rows, block, all, own, args);

    if (simd_any(above)) {
      for (int b = 0; b < BLOCKS; ++b) {
        for (int e = 0; e < 2; ++e) {
          float m = max(score[b][0][e], score[b][1][e]);
          m = max(m, simd_shuffle_xor(m, 2));
          m = max(m, simd_shuffle_xor(m, 4));
          m = max(m, simd_shuffle_xor(m, 16));
          m = m > largest[b][e] + headroom ? m : largest[b][e];
          const float rescale = exp(largest[b][e] - m);
          largest[b][e] = m;
          sum[b][e] *= rescale;
          for (int d = 0; d < DV / 8; ++d)
            acc[b][d / 2][d % 2].thread_elements()[e] *= rescale;
        }
      }
    }
    for (int b = 0; b < BLOCKS; ++b) {
      for (int i = 0; i < 2; ++i) {
        for (int e = 0; e < 2; ++e) {
          score[b][i][e] = weight_of(score[b][i][e], largest[b][e]);
          sum[b][e] += score[b][i][e];
        }
      }
      values.add(score[b], acc[b]);
    }
  }

  for (int b = 0; b < BLOCKS; ++b) {
    for (int e = 0; e < 2; ++e) {
      float total = sum[b][e];
      total += simd_shuffle_xor(total, 2);
      total += simd_shuffle_xor(total, 4);
      total += simd_shuffle_xor(total, 16);
      if (own.row == 0) {
        gathered[simdgroup][8 * b + own.column + e].largest = largest[b][e];
        gathered[simdgroup][8 * b + own.column + e].sum = total;
      }
    }
  }
  threadgroup float* joined = (threadgroup float*)shared;
  for (int first = 0; first < ROWS; first += Merge::rows) {
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the rows before are done with
    for (int b = 0; b < BLOCKS; ++b) {
      for (int e = 0; e < 2; ++e) {
        const int r = 8 * b + own.column + e - first;
        if (r >= 0 && r < Merge::rows) {
          threadgroup float* row = joined + (int(simdgroup) * Merge::rows + r) * Merge::stride;
          for (int d = 0; d < DV / 8; ++d)
            row[ValueBlock<T, VStore, DV>::column(d, own)] = acc[b][d / 2][d % 2].thread_elements()[e];
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    Merge::write(args, work, first, joined, gathered, sinks, y, partial_y, partials, int(tid));
  }
}
