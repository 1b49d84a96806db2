// Heads of new tokens: how a pair of elements rotates, and where q, k and v heads go. Heads are numbered q first, then
// k, then v. A pair is two elements of a head that a thread handles together: (i, i + rotary_dim / 2) of the rotated
// part, or neighbours if it is interleaved, then neighbours of the rest.
#pragma once
#include "attention/rope_kv.h"

namespace foundry {

struct Pair {
  uint first, second; // elements of the head
  bool rotates;
  uint column; // of cos and sin for the first; the second's is rotary_dim / 2 further
};

METAL_FUNC bool is_value(constant RopeKvArgs& args, uint head) { return head >= args.n_heads + args.n_kv_heads; }

METAL_FUNC Pair pair_of(constant RopeKvArgs& args, uint head, uint i) {
  const bool rotates = !is_value(args, head) && i < args.rotary_dim / 2;
  if (rotates && !args.interleaved) return {i, i + args.rotary_dim / 2, true, i};
  return {2 * i, 2 * i + 1, rotates, i};
}

// The column of cos and sin for element i of the rotated part, and where it goes if pairs are written apart.
METAL_FUNC uint angle_of(constant RopeKvArgs& args, uint i) {
  return args.interleaved ? i / 2 + i % 2 * (args.rotary_dim / 2) : i;
}

// Offsets of a token's cos and sin for a head.
struct Angles {
  uint cosines, sines;
};

METAL_FUNC Angles angles_of(constant RopeKvArgs& args, device const int* positions, uint batch, uint token, uint head) {
  const uint keys = head < args.n_heads ? 0 : args.key_columns;
  if (args.has_positions) {
    const uint row = metal::min(uint(positions[batch * args.q_len + token]), args.table_rows - 1);
    return {row * args.cos_token + keys, row * args.sin_token + keys};
  }
  return {batch * args.cos_batch + token * args.cos_token + keys,
          batch * args.sin_batch + token * args.sin_token + keys};
}

// A head of a new token as it comes from the projections.
template <typename T>
METAL_FUNC device const T* head_in(constant RopeKvArgs& args, uint batch, uint token, uint head, device const T* q,
                                   device const T* k, device const T* v) {
  if (head < args.n_heads) return q + batch * args.q_batch + token * args.q_token + head * args.q_head;
  head -= args.n_heads;
  if (head < args.n_kv_heads) return k + batch * args.k_batch + token * args.k_token + head * args.head_dim;
  return v + batch * args.v_batch + token * args.v_token + (head - args.n_kv_heads) * args.value_dim;
}

// Where a head of a new token is written: q to q_out [batch, head, token, dim], k and v to the caches.
template <typename T>
METAL_FUNC device T* head_out(constant RopeKvArgs& args, device const int* step, uint batch, uint token, uint head,
                              device T* q_out, device T* k_cache, device T* v_cache) {
  if (head < args.n_heads) return q_out + ((batch * args.n_heads + head) * args.q_len + token) * args.head_dim;
  const uint slot = (args.has_step ? metal::min(uint(step[0]), args.start) : args.start) + token;
  head -= args.n_heads;
  if (head < args.n_kv_heads)
    return k_cache + batch * args.k_cache_batch + head * args.k_cache_head + slot * args.k_cache_token;
  head -= args.n_kv_heads;
  return v_cache + batch * args.v_cache_batch + head * args.v_cache_head + slot * args.v_cache_token;
}

} // namespace foundry
