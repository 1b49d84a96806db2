// What a query sees, and how q and K become scores. Included by attention.metal alone.
#pragma once
#include "attention.h"
#include "vec.h"

using namespace metal;
using namespace foundry;

constant bool has_mask [[function_constant(FC_ATTENTION_MASK)]];
constant bool has_softcap [[function_constant(FC_ATTENTION_SOFTCAP)]];
constant bool aligned [[function_constant(FC_ATTENTION_ALIGNED)]];

// Scores at or below this are invisible keys; finite, so that no difference of two of them is NaN.
constant constexpr float invisible = -1.0e38f;

struct KeyRange {
  int begin, end;
};

// How far the cache is filled. With a step, that is known to the device only: step[0] is where the first query's key
// lies, step[1] the number of keys that came before the first of the cache, by which masks and kv_start are shifted.
struct Filled {
  int length, shift;
};

METAL_FUNC Filled filled(constant AttentionArgs& args, device const int* step) {
  Filled keys = {int(args.kv_len), 0};
  if (args.has_step) {
    keys.length = min(step[0] + int(args.q_len), keys.length);
    keys.shift = step[1];
  }
  return keys;
}

METAL_FUNC KeyRange visible_keys(constant AttentionArgs& args, Filled keys, int query, int kv_start) {
  const int position = keys.length - int(args.q_len) + query; // the last query is at the last key
  KeyRange range;
  range.begin = max(kv_start - keys.shift, 0);
  range.end = keys.length;
  if (args.causal) {
    range.end = position + 1;
    if (args.window) range.begin = max(range.begin, position - int(args.window) + 1);
  }
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
  if (aligned)
    load_wide(p, v);
  else
    load_narrow(p, v);
}

// The scores of 32 keys, lane i that of key i: each lane reads a key alone. One chain of loads a lane; for CPUs.
template <typename T, int D, int R, int L> struct Scores {
  static_assert(L == 1, "one lane a key");
  static METAL_FUNC int own_key(uint lane) { return int(lane); }
  static METAL_FUNC void dot(device const T* k_head, uint stride, int tile, int last, threadgroup const float4* q,
                             uint lane, thread float (&score)[R]) {
    device const T* k_row = k_head + uint(min(tile + int(lane), last)) * stride;
    float4 sum[R];
    for (int r = 0; r < R; ++r) sum[r] = float4(0.0f);
    for (int i = 0; i < D / 4; ++i) {
      float k[4];
      load_row(k_row + 4 * i, k);
      for (int r = 0; r < R; ++r) sum[r] = fma(float4(k[0], k[1], k[2], k[3]), q[r * (D / 4) + i], sum[r]);
    }
    for (int r = 0; r < R; ++r) score[r] = (sum[r].x + sum[r].y) + (sum[r].z + sum[r].w);
  }
};

// Eight lanes read a key together, so that loads of a simdgroup lie side by side. A load is of four keys; then eight
// lanes hold parts of four sums each, which three exchanges bring together.
template <typename T, int D, int R> struct Scores<T, D, R, 8> {
  // Of the eight lanes, bits 1 and 2 say which of four sums a lane ends with, and bit 0 from which half of the tile.
  static METAL_FUNC int own_key(uint lane) {
    return int(((lane & 1) * 4 + (lane >> 2 & 1) * 2 + (lane >> 1 & 1)) * 4 + lane / 8);
  }
  static METAL_FUNC void dot(device const T* k_head, uint stride, int tile, int last, threadgroup const float4* q,
                             uint lane, thread float (&score)[R]) {
    constexpr int E = D % 64 == 0 ? 8 : 4; // elements of a load
    const uint first = lane % 8 * E;
    for (int h = 0; h < 2; ++h) {
      device const T* k_row[4];
      float sum[R][4];
      for (int i = 0; i < 4; ++i) {
        k_row[i] = k_head + uint(min(tile + (h * 4 + i) * 4 + int(lane / 8), last)) * stride + first;
        for (int r = 0; r < R; ++r) sum[r][i] = 0.0f;
      }
      for (int g = 0; g < 4; g += 2) { // two at a time: registers
        for (int d = 0; d < D; d += 8 * E) {
          float k[2][E];
          for (int i = 0; i < 2; ++i) load_row(k_row[g + i] + d, k[i]);
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

// Adds the weighted values of the keys begin .. end of a tile to this lane's columns, eight keys at a time: their
// values are in flight together. An unseen key's value is not read: it may hold anything. Whole: all of the tile is
// seen.
template <bool Whole, typename T, int R, int C>
METAL_FUNC void add_values(device const T* v_tile, uint stride, int begin, int end, threadgroup const float* weights,
                           thread float (&acc)[R][C]) {
  for (int n = Whole ? 0 : begin & ~7; n < (Whole ? 32 : end); n += 8) {
    float v[8][C];
    for (int j = 0; j < 8; ++j) {
      if (Whole || (n + j >= begin && n + j < end)) {
        load_row(v_tile + uint(n + j) * stride, v[j]);
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
