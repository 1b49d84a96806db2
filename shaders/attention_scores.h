// What a query sees, and how q and K become scores: for attention.metal and attention_prefill.metal.
#pragma once
#include "attention.h"
#include "kv_store.h"

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

struct KeyRange {
  int begin, end;
};

// How far a sequence's cache is filled. With a step or rows, that is known to the device only: step[0] (rows[batch][0])
// is where the first query's key lies; step[1] the number of keys that came before the first of the cache, by which
// masks and kv_start are shifted; rows[batch][1] the number of queries, beyond which none sees anything.
struct Filled {
  int length, shift, first, queries; // first: the key of query 0
};

METAL_FUNC Filled filled(constant AttentionArgs& args, device const int* step, device const int* rows, uint batch) {
  Filled keys = {int(args.kv_len), 0, int(args.kv_len) - int(args.q_len), int(args.q_len)};
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

METAL_FUNC KeyRange visible_keys(constant AttentionArgs& args, Filled keys, int query, int kv_start) {
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

METAL_FUNC float apply_mask(float score, uchar keep) { return keep ? score : invisible; }
template <typename M> METAL_FUNC float apply_mask(float score, M bias) { return score + float(bias); }

// The keys of a split.
METAL_FUNC KeyRange split_keys(constant AttentionArgs& args, uint split) {
  const uint middle_split = attention_near / args.keys;
  const uint far_split = middle_split + (attention_middle - attention_near) / (2 * args.keys);
  const uint keys = split < middle_split ? args.keys : split < far_split ? 2 * args.keys : args.far_keys;
  KeyRange range;
  range.begin = split < middle_split ? 0 : split < far_split ? attention_near : attention_middle;
  range.begin += int((split - (split < middle_split ? 0 : split < far_split ? middle_split : far_split)) * keys);
  range.end = range.begin + int(keys);
  return range;
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

// A raw dot product to the score that enters the softmax, or `invisible`. `mask` points at the row's first key.
template <typename M>
METAL_FUNC float finish_score(float score, int key, KeyRange range, device const M* mask,
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
template <typename S>
METAL_FUNC KvRows<S> rows_of(constant AttentionArgs& args, device const typename S::unit* cache,
                             device const int* table, uint batch, uint batch_stride, uint head_offset, uint token) {
  device const typename S::unit* first = cache + head_offset;
  if (!paged) first += batch * batch_stride;
  return {first, token, batch_stride, table + batch * args.table_row, args.page_shift};
}

// The scores of 32 keys, lane i that of key i: each lane reads a key alone. One chain of loads a lane; for CPUs. Only
// the keys of `seen` are read; other lanes read one of those.
template <typename S, int D, int R, int L> struct Scores {
  static_assert(L == 1, "one lane a key");
  static METAL_FUNC int own_key(uint lane) { return int(lane); }
  static METAL_FUNC void dot(thread const KvRows<S>& keys, int tile, KeyRange seen, threadgroup const float4* q,
                             uint lane, thread float (&score)[R]) {
    device const typename S::unit* k_row = keys.row(min(max(tile + int(lane), seen.begin), seen.end - 1), paged);
    float4 sum[R];
    for (int r = 0; r < R; ++r) sum[r] = float4(0.0f);
    for (int i = 0; i < D / 4; ++i) {
      float k[4];
      S::load(k_row, uint(4 * i), aligned, k);
      for (int r = 0; r < R; ++r) sum[r] = fma(float4(k[0], k[1], k[2], k[3]), q[r * (D / 4) + i], sum[r]);
    }
    for (int r = 0; r < R; ++r) score[r] = (sum[r].x + sum[r].y) + (sum[r].z + sum[r].w);
  }
};

// Eight lanes read a key together, so that loads of a simdgroup lie side by side. A load is of four keys; then eight
// lanes hold parts of four sums each, which three exchanges bring together.
template <typename S, int D, int R> struct Scores<S, D, R, 8> {
  // Of the eight lanes, bits 1 and 2 say which of four sums a lane ends with, and bit 0 from which half of the tile.
  static METAL_FUNC int own_key(uint lane) {
    return int(((lane & 1) * 4 + (lane >> 2 & 1) * 2 + (lane >> 1 & 1)) * 4 + lane / 8);
  }
  static METAL_FUNC void dot(thread const KvRows<S>& keys, int tile, KeyRange seen, threadgroup const float4* q,
                             uint lane, thread float (&score)[R]) {
    constexpr int E = D % 64 == 0 ? 8 : 4; // elements of a load
    const uint first = lane % 8 * E;
    for (int h = 0; h < 2; ++h) {
      device const typename S::unit* k_row[4];
      float sum[R][4];
      for (int i = 0; i < 4; ++i) {
        const int key = tile + (h * 4 + i) * 4 + int(lane / 8);
        k_row[i] = keys.row(min(max(key, seen.begin), seen.end - 1), paged);
        for (int r = 0; r < R; ++r) sum[r][i] = 0.0f;
      }
      for (int g = 0; g < 4; g += 2) { // two at a time: registers
        for (int d = 0; d < D; d += 8 * E) {
          if (D % (8 * E) == 0 || d + int(first) < D) { // rows that do not fill the eight lanes' loads
            float k[2][E];
            for (int i = 0; i < 2; ++i) S::load(k_row[g + i], d + first, aligned, k[i]);
            for (int r = 0; r < R; ++r) {
              for (int e = 0; e < E; e += 4) {
                const float4 x = q[(r * D + d + first + e) / 4];
                for (int i = 0; i < 2; ++i) {
                  const float two = fma(k[i][e + 1], x.y, fma(k[i][e], x.x, sum[r][g + i]));
                  sum[r][g + i] = fma(k[i][e + 3], x.w, fma(k[i][e + 2], x.z, two));
                }
              }
            }
          }
        }
      }
      const bool upper = lane & 4, odd = lane & 2, mine = (lane & 1) == uint(h);
      for (int r = 0; r < R; ++r) {
        const float2 lo = float2(sum[r][0], sum[r][1]), hi = float2(sum[r][2], sum[r][3]);
        const float2 pair = (upper ? hi : lo) + simd_shuffle_xor(upper ? lo : hi, 4);
        float one = (odd ? pair.y : pair.x) + simd_shuffle_xor(odd ? pair.x : pair.y, 2);
        one += simd_shuffle_xor(one, 1);
        score[r] = mine ? one : score[r];
      }
    }
  }
};

// Of R values, the largest in the simdgroup.
template <int R> METAL_FUNC void simd_maxima(thread float (&v)[R]) {
  if (R % 4 == 0) {
    for (int r = 0; r + 3 < R; r += 4) {
      const float4 m = simd_max(float4(v[r], v[r + 1], v[r + 2], v[r + 3]));
      v[r] = m.x;
      v[r + 1] = m.y;
      v[r + 2] = m.z;
      v[r + 3] = m.w;
    }
  } else {
    for (int r = 0; r < R; ++r) v[r] = simd_max(v[r]);
  }
}

// Columns that a lane has of DV: a vector's worth where they would not be a whole number each.
template <typename S, int DV> struct Columns {
  FOUNDRY_CONST int each = !S::packed && DV % 32 == 0 ? DV / 32 : DV <= 128 ? 4 : 8;
  FOUNDRY_CONST int lanes = DV / each;
};

// Adds the weighted values of the keys begin .. end of a tile to this lane's columns, eight keys at a time: their
// values are in flight together. An unseen key's value is not read: it may hold anything. Whole: all of the tile is
// seen. Eight keys lie in one page.
template <bool Whole, typename S, int R, int C>
METAL_FUNC void add_values(thread const KvRows<S>& values, int tile, uint column, int begin, int end,
                           threadgroup const float* weights, thread float (&acc)[R][C]) {
  for (int n = Whole ? 0 : begin & ~7; n < (Whole ? 32 : end); n += 8) {
    device const typename S::unit* v_row = values.row(tile + n, paged);
    float v[8][C];
    for (int j = 0; j < 8; ++j) {
      if (Whole || (n + j >= begin && n + j < end)) {
        S::load(v_row + uint(j) * values.token, column, aligned, v[j]);
      } else {
        for (int c = 0; c < C; ++c) v[j][c] = 0.0f;
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int h = 0; h < 8; h += 4) {
        const float4 p = *(threadgroup const float4*)(weights + r * 32 + n + h);
        for (int c = 0; c < C; ++c)
          acc[r][c] = fma(p.w, v[h + 3][c], fma(p.z, v[h + 2][c], fma(p.y, v[h + 1][c], fma(p.x, v[h][c], acc[r][c]))));
      }
    }
  }
}
