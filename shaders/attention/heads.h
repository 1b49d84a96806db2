// Heads of new tokens: how a pair of elements rotates, and where q, k and v heads go. Heads are numbered q first, then
// k, then v. A pair is two elements of a head that a thread handles together: (i, i + rotary_dim / 2) of the rotated
// part, then neighbours of the rest.
#pragma once
#include "attention/rope_kv.h"

namespace foundry {

struct Pair {
  uint first, second; // elements of the head
  bool rotates;
};

METAL_FUNC bool is_value(constant RopeKvArgs& args, uint head) { return head >= args.n_heads + args.n_kv_heads; }

METAL_FUNC Pair pair_of(constant RopeKvArgs& args, uint head, uint i) {
  const uint rotary = is_value(args, head) ? 0 : args.rotary_dim;
  if (i < rotary / 2) return {i, i + rotary / 2, true};
  const uint first = rotary + 2 * (i - rotary / 2);
  return {first, first + 1, false};
}

// The row of cos and sin for a token, and its offset in either.
METAL_FUNC uint cos_offset(constant RopeKvArgs& args, device const int* positions, uint batch, uint token) {
  if (args.has_positions) {
    const uint row = metal::min(uint(positions[batch * args.q_len + token]), args.table_rows - 1);
    return row * args.cos_token;
  }
  return batch * args.cos_batch + token * args.cos_token;
}

METAL_FUNC uint sin_offset(constant RopeKvArgs& args, device const int* positions, uint batch, uint token) {
  if (args.has_positions) {
    const uint row = metal::min(uint(positions[batch * args.q_len + token]), args.table_rows - 1);
    return row * args.sin_token;
  }
  return batch * args.sin_batch + token * args.sin_token;
}

// A head of a new token as it comes from the projections.
template <typename T>
METAL_FUNC device const T* head_in(constant RopeKvArgs& args, uint batch, uint token, uint head, device const T* q,
                                   device const T* k, device const T* v) {
  if (head < args.n_heads) return q + batch * args.q_batch + token * args.q_token + head * args.head_dim;
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
