// What a query sees, and how q and K become scores: for attention_decode.metal and attention_prefill.metal.
#pragma once
#include "attention/attention.h"
#include "attention/kv_store.h"

using namespace metal;
using namespace foundry;

constant bool has_mask [[function_constant(FC_ATTENTION_MASK)]];
constant bool has_softcap [[function_constant(FC_ATTENTION_SOFTCAP)]];
constant bool aligned [[function_constant(FC_ATTENTION_ALIGNED)]];
constant bool has_sinks [[function_constant(FC_ATTENTION_SINKS)]];
constant bool wide_sinks [[function_constant(FC_ATTENTION_WIDE_SINKS)]];
constant bool paged [[function_constant(FC_ATTENTION_PAGED)]];

// Scores at or below this are invisible keys; finite, so that no difference of two of them is NaN.
constant constexpr float invisible = -1.0e38f;

// What weights are relative to is exceeded by scores up to this before it follows: it seldom has to after a first tile.
constant constexpr float headroom = 8.0f;

struct KeyRange {
  int begin, end;
};

// How far a sequence's cache is filled. With a step or rows, that is known to the device only: step[0] (rows[batch][0])
// is where the first query's key lies; step[1] the number of keys that came before the first of the cache, by which
// masks and kv_start are shifted; rows[batch][1] the number of queries, beyond which none sees anything.
struct KvExtent {
  int length, shift, first, queries; // first: the key of query 0
};

METAL_FUNC KvExtent kv_extent(constant AttentionArgs& args, device const int* step, device const int* rows,
                              uint batch) {
  KvExtent keys = {int(args.kv_len), 0, int(args.kv_len) - int(args.q_len), int(args.q_len)};
  if (args.has_step) {
    keys.length = min(step[0] + int(args.q_len), keys.length);
    keys.first = keys.length - int(args.q_len);
    keys.shift = step[1];
  }
  if (args.has_rows) {
    keys.first = rows[2 * batch];
    keys.queries = min(rows[2 * batch + 1], int(args.q_len));
    keys.length = max(min(keys.first + keys.queries, keys.length), 0);
  }
  return keys;
}

METAL_FUNC KeyRange visible_keys(constant AttentionArgs& args, KvExtent keys, int query, int kv_start) {
  const int position = keys.first + query;
  KeyRange range;
  range.begin = max(kv_start - keys.shift, 0);
  range.end = keys.length;
  if (args.causal) {
    range.end = min(position + 1, keys.length);
    if (args.window) range.begin = max(range.begin, position - int(args.window) + 1);
  }
  if (query >= keys.queries) return {keys.length, 0};
  return range;
}

// What any of some neighbouring queries sees.
METAL_FUNC KeyRange seen_by_any(constant AttentionArgs& args, KvExtent keys, uint first, uint last, int kv_start) {
  const int last_seeing = max(min(int(last), keys.queries - 1), int(first));
  return {visible_keys(args, keys, int(first), kv_start).begin, visible_keys(args, keys, last_seeing, kv_start).end};
}

METAL_FUNC float apply_mask(float score, uchar keep) { return keep ? score : invisible; }
// The least half stands for none, as Hugging Face's masks have it; the least of wider types is invisible by itself.
METAL_FUNC float apply_mask(float score, half bias) { return bias > half(-65504.0f) ? score + float(bias) : invisible; }
template <typename Mask> METAL_FUNC float apply_mask(float score, Mask bias) { return score + float(bias); }

// The keys of a split.
METAL_FUNC KeyRange split_keys(constant AttentionArgs& args, uint split) {
  const uint middle_split = attention_near / args.keys - 1;
  const uint far_split = middle_split + (attention_middle - attention_near) / (2 * args.keys);
  const bool near = split < middle_split, middle = !near && split < far_split;
  const uint begin = near     ? (split + (split > 0)) * args.keys
                     : middle ? attention_near + (split - middle_split) * 2 * args.keys
                              : attention_middle + (split - far_split) * args.far_keys;
  const uint keys = near && split > 0 ? args.keys : near || middle ? 2 * args.keys : args.far_keys;
  return {int(begin), int(begin + keys)};
}

// Splits that have keys. The grid may have more: it was made for a cache that is full.
METAL_FUNC uint used_splits(constant AttentionArgs& args, int length) {
  const uint used = attention_splits(uint(length), args.keys, args.far_keys);
  return min(used, args.splits);
}

// What a head's sink does to the weighted values of a row, of the largest score `m`, and to the sum of its weights.
template <typename T>
METAL_FUNC void add_sink(device const T* sinks, uint head, float m, thread float& value, thread float& total) {
  const float sink = wide_sinks ? ((device const float*)sinks)[head] : float(sinks[head]);
  const float top = max(m, sink), of_keys = exp(m - top);
  value *= of_keys;
  total = fma(total, of_keys, exp(sink - top));
}

// What a threadgroup of a decode kernel works at. The last splits, the longest ones, come first: so there is something
// to do beside them until the end.
struct DecodeTile {
  uint batch, kv_head, split;
  int first_row, n_rows;

  METAL_FUNC uint row(int r) const thread { return uint(min(first_row + r, n_rows - 1)); }
  METAL_FUNC uint query(constant AttentionArgs& args, int r) const thread { return row(r) / args.group; }
  METAL_FUNC uint head(constant AttentionArgs& args, int r) const thread {
    return kv_head * args.group + row(r) % args.group;
  }
  METAL_FUNC uint query_row(constant AttentionArgs& args, int r) const thread { // where it begins, in elements
    return batch * args.q_batch + head(args, r) * args.q_head + query(args, r) * args.q_token;
  }
  METAL_FUNC uint value_query_row(constant AttentionArgs& args, int r) const thread {
    return batch * args.u_batch + head(args, r) * args.u_head + query(args, r) * args.u_token;
  }
  METAL_FUNC uint mask_row(constant AttentionArgs& args, int r) const thread {
    return batch * args.mask_batch + head(args, r) * args.mask_head + query(args, r) * args.mask_token;
  }
};

template <int ROWS> METAL_FUNC DecodeTile decode_tile(constant AttentionArgs& args, uint3 tgid) {
  return {tgid.y / args.n_kv_heads, tgid.y % args.n_kv_heads, args.splits - 1 - tgid.z, int(tgid.x) * ROWS,
          int(args.q_len * args.group)};
}

// Merges what SIMDS simdgroups have gathered of ROWS query rows, in at most 16 KiB of threadgroup memory: `rows` at a
// time, whose values of all simdgroups are in `values`.
template <int ROWS, int SIMDS, int DV> struct SplitMerge {
  FOUNDRY_CONST int rows = SIMDS * ROWS * DV <= 4096 ? ROWS : SIMDS * ROWS * DV <= 8192 ? ROWS / 2 : ROWS / 4;
  FOUNDRY_CONST int stride = DV + 4; // of a row in floats: rows begin in different banks
  FOUNDRY_CONST int floats = SIMDS * rows * stride;

  template <typename T>
  static METAL_FUNC void write(constant AttentionArgs& args, DecodeTile work, int first,
                               threadgroup const float* values,
                               threadgroup const AttentionPartial (&gathered)[SIMDS][ROWS], device const T* sinks,
                               device T* y, device float* partial_y, device AttentionPartial* partials, int tid) {
    const int used = min(rows, work.n_rows - work.first_row - first);
    for (int i = tid; i < used * DV; i += SIMDS * 32) {
      const int r = first + i / DV, column = i % DV;
      float m = invisible, total = 0.0f, value = 0.0f;
      for (int s = 0; s < SIMDS; ++s) m = max(m, gathered[s][r].largest);
      for (int s = 0; s < SIMDS; ++s) {
        const float w = exp(gathered[s][r].largest - m);
        total = fma(w, gathered[s][r].sum, total);
        value = fma(w, values[(s * rows + i / DV) * stride + column], value);
      }
      const uint query = work.query(args, r), head = work.head(args, r);
      const uint out_row = (work.batch * args.q_len + query) * (args.n_kv_heads * args.group) + head;
      if (args.splits == 1) {
        if (has_sinks) add_sink(sinks, head, m, value, total);
        y[out_row * DV + column] = T(total == 0.0f ? 0.0f : value / total);
      } else {
        partial_y[(out_row * args.splits + work.split) * DV + column] = value;
        if (column == 0) {
          partials[out_row * args.splits + work.split].largest = m;
          partials[out_row * args.splits + work.split].sum = total;
        }
      }
    }
  }
};

// A raw dot product to the score that enters the softmax, or `invisible`. `mask` points at the row's first key.
template <typename Mask>
METAL_FUNC float finish_score(float score, int key, KeyRange range, device const Mask* mask,
                              constant AttentionArgs& args) {
  if (has_softcap) score = args.softcap * precise::tanh(score / args.softcap);
  const bool in_range = key >= range.begin && key < range.end;
  if (has_mask && in_range) score = apply_mask(score, mask[key]);
  return in_range ? score : invisible;
}

METAL_FUNC float weight_of(float score, float largest) { // NaN stays NaN
  return score <= invisible ? 0.0f : exp(score - largest);
}

template <typename T, int N> METAL_FUNC void load_row(device const T* p, thread float (&v)[N]) {
  DenseKv<T>::load(p, 0, aligned, v);
}

// The rows of a head of a cache; `batch`: elements from a sequence to the next, or from a page to the next.
template <typename Store>
METAL_FUNC KvRows<Store> rows_of(constant AttentionArgs& args, device const typename Store::unit* cache,
                                 device const int* table, uint batch, uint batch_stride, uint head_offset, uint token) {
  device const typename Store::unit* first = cache + head_offset;
  if (!paged) first += batch * batch_stride;
  return {first, token, batch_stride, table + batch * args.table_row, args.page_shift};
}

// Of N sums, which eight lanes hold parts of, each lane gets N / 8: those from lane % 8 * N / 8 on. They are added up
// in the same order however many there are.
template <int N, int Lanes> struct LaneReduce {
  static METAL_FUNC void reduce(thread float* sums, uint lane) {
    const bool upper = lane & (Lanes / 2);
    for (int i = 0; i < N / 2; ++i) {
      const float low = sums[i], high = sums[i + N / 2];
      sums[i] = (upper ? high : low) + simd_shuffle_xor(upper ? low : high, Lanes / 2);
    }
    LaneReduce<N / 2, Lanes / 2>::reduce(sums, lane);
  }
};
template <int N> struct LaneReduce<N, 1> {
  static METAL_FUNC void reduce(thread float*, uint) {}
};

// Eight neighbouring keys, which lie in one page, as they are read: unseen ones, whose memory may hold anything, as the
// nearest seen one. Their scores are not used, and they weigh nothing.
template <typename Store> struct EightRows {
  device const typename Store::unit* base;
  uint token;
  int first, last; // seen ones, from `base` on

  METAL_FUNC device const typename Store::unit* row(int i) const thread {
    return base + uint(min(max(i, first), last)) * token;
  }
};
template <typename Store>
METAL_FUNC EightRows<Store> eight_rows(thread const KvRows<Store>& rows, int key, KeyRange seen) {
  const int from = min(max(key, seen.begin & ~7), (seen.end - 1) & ~7);
  return {rows.row(from, paged), rows.token, seen.begin - from, seen.end - 1 - from};
}

// The scores of the 32 keys of a tile, lane i those of key i. Only keys of `seen` are read; the others' scores are any
// numbers. LANES = 1: each lane reads a key alone. One chain of loads a lane; for CPUs. `shared`: not used.
template <typename Store, int D, int ROWS, int LANES> struct Scores {
  static_assert(LANES == 1, "one lane a key");
  static METAL_FUNC int q_index(int i) { return i; } // in threadgroup memory, of elements 4 * i .. of a query
  static METAL_FUNC void dot(thread const KvRows<Store>& keys, int tile, KeyRange seen, threadgroup const float4* q,
                             uint lane, threadgroup float*, thread float (&score)[ROWS]) {
    constexpr int step = 8; // of four elements: short chains of sums, in four lanes of a vector
    device const typename Store::unit* k_row = keys.row(min(max(tile + int(lane), seen.begin), seen.end - 1), paged);
    float4 total[ROWS];
    for (int r = 0; r < ROWS; ++r) total[r] = float4(0.0f);
    for (int first = 0; first < D / 4; first += step) {
      float4 sum[ROWS];
      for (int r = 0; r < ROWS; ++r) sum[r] = float4(0.0f);
      for (int i = first; i < min(first + step, D / 4); ++i) {
        float k[4];
        Store::load(k_row, uint(4 * i), aligned, k);
        for (int r = 0; r < ROWS; ++r) sum[r] = fma(float4(k[0], k[1], k[2], k[3]), q[r * (D / 4) + i], sum[r]);
      }
      for (int r = 0; r < ROWS; ++r) total[r] += sum[r];
    }
    for (int r = 0; r < ROWS; ++r) score[r] = (total[r].x + total[r].y) + (total[r].z + total[r].w);
  }
};

// Eight lanes read a key together, so that loads of a simdgroup lie side by side; four such teams take eight keys each,
// KEYS of them at a time. `shared`: ROWS * 32 floats, through which a key's scores come to its lane.
template <typename Store, int D, int ROWS> struct Scores<Store, D, ROWS, 8> {
  FOUNDRY_CONST int LOAD = D % 64 == 0 ? 8 : 4; // elements of a load
  FOUNDRY_CONST int KEYS = ROWS == 1 ? 8 : ROWS <= 8 ? 4 : 2;

  // What the eight lanes of a team read at the same time lies side by side: in different banks.
  static METAL_FUNC int q_index(int i) { return LOAD == 8 ? (i & ~15) + (i & 1) * 8 + (i & 15) / 2 : i; }

  // The parts of KEYS keys' dot products that a lane adds up, of row r and key g + i in sums[r * KEYS + i].
  static METAL_FUNC void parts(thread const EightRows<Store>& keys, int g, threadgroup const float4* q, uint member,
                               thread float (&sums)[ROWS * KEYS]) {
    for (int i = 0; i < ROWS * KEYS; ++i) sums[i] = 0.0f;
    for (int d = 0; d < D; d += 8 * LOAD) {
      const int column = d + int(member) * LOAD;
      if (D % (8 * LOAD) == 0 || column < D) { // rows that do not fill the team's loads
        float k[KEYS][LOAD], scale[KEYS];
        for (int i = 0; i < KEYS; ++i) scale[i] = Store::load_codes(keys.row(g + i), uint(column), aligned, k[i]);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
          float part[KEYS];
#pragma unroll
          for (int e = 0; e < LOAD; e += 4) {
            const float4 x = q[r * (D / 4) + d / 4 + (LOAD == 8 ? e * 2 : 0) + int(member)];
            for (int i = 0; i < KEYS; ++i) {
              const float one = e == 0 ? (Store::packed ? 0.0f : sums[r * KEYS + i]) : part[i];
              const float two = fma(k[i][e + 1], x.y, fma(k[i][e], x.x, one));
              part[i] = fma(k[i][e + 3], x.w, fma(k[i][e + 2], x.z, two));
            }
          }
          for (int i = 0; i < KEYS; ++i)
            sums[r * KEYS + i] = Store::packed ? fma(scale[i], part[i], sums[r * KEYS + i]) : part[i];
        }
      }
    }
  }

  static METAL_FUNC void dot(thread const KvRows<Store>& keys, int tile, KeyRange seen, threadgroup const float4* q,
                             uint lane, threadgroup float* shared, thread float (&score)[ROWS]) {
    const uint member = lane % 8;
    const int of_team = int(lane / 8) * 8;
    const EightRows<Store> eight = eight_rows(keys, tile + of_team, seen);
    for (int g = 0; g < 8; g += KEYS) {
      const int key = of_team + g;
      float sums[ROWS * KEYS];
      parts(eight, g, q, member, sums);
      LaneReduce<ROWS * KEYS, 8>::reduce(sums, lane);
      for (int n = 0; n < ROWS * KEYS / 8; ++n) {
        const int of = int(member) * (ROWS * KEYS / 8) + n;
        shared[of / KEYS * 32 + key + of % KEYS] = sums[n];
      }
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (int r = 0; r < ROWS; ++r) score[r] = shared[r * 32 + int(lane)];
  }
};

// Of ROWS values, the largest in the simdgroup.
template <int ROWS> METAL_FUNC void simd_maxima(thread float (&v)[ROWS]) {
  if (ROWS % 4 == 0) {
    for (int r = 0; r + 3 < ROWS; r += 4) {
      const float4 m = simd_max(float4(v[r], v[r + 1], v[r + 2], v[r + 3]));
      v[r] = m.x;
      v[r + 1] = m.y;
      v[r + 2] = m.z;
      v[r + 3] = m.w;
    }
  } else {
    for (int r = 0; r < ROWS; ++r) v[r] = simd_max(v[r]);
  }
}

// Columns that a lane has of DV: a vector's worth where they would not be a whole number each.
template <typename Store, int DV> struct Columns {
  FOUNDRY_CONST int each = DV > 256 ? 16 : !Store::packed && DV % 32 == 0 ? DV / 32 : DV <= 128 ? 4 : 8;
  FOUNDRY_CONST int lanes = DV / each;
};

// Adds eight values by their weights to this lane's columns, from `first` on.
template <int ROWS, int COLS, int PART>
METAL_FUNC void weigh_values(thread const float (&v)[8][PART], threadgroup const float* weights, int first,
                             thread float (&acc)[ROWS][COLS]) {
  for (int r = 0; r < ROWS; ++r) {
    const float4 p = *(threadgroup const float4*)(weights + r * 32);
    const float4 w = *(threadgroup const float4*)(weights + r * 32 + 4);
    for (int c = 0; c < PART; ++c) { // a short sum first
      const float four = fma(p.w, v[3][c], fma(p.z, v[2][c], fma(p.y, v[1][c], p.x * v[0][c])));
      acc[r][first + c] += fma(w.w, v[7][c], fma(w.z, v[6][c], fma(w.y, v[5][c], fma(w.x, v[4][c], four))));
    }
  }
}

// Adds the weighted values of a tile's keys to this lane's columns: of eight keys in flight together.
template <typename Store, int ROWS, int COLS>
METAL_FUNC void add_values(thread const KvRows<Store>& values, int tile, KeyRange seen, uint column,
                           threadgroup const float* weights, thread float (&acc)[ROWS][COLS]) {
  constexpr int PART = COLS > 8 ? 8 : COLS; // columns in flight
  for (int n = 0; n < 32; n += 8) {
    const EightRows<Store> eight = eight_rows(values, tile + n, seen);
#pragma unroll
    for (int c = 0; c < COLS; c += PART) {
      float v[8][PART];
      for (int j = 0; j < 8; ++j) Store::load(eight.row(j), column + uint(c), aligned, v[j]);
      weigh_values(v, weights + n, c, acc);
    }
  }
}
