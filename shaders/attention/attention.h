// Host and GPU share this: arguments, function constants and tuning of attention_decode.metal.
#pragma once
#include "attention/rope_kv.h"
#include "common/portable.h"

#define FC_ATTENTION_MASK 0       // a mask is bound
#define FC_ATTENTION_SOFTCAP 1    // scores pass through softcap * tanh(score / softcap)
#define FC_ATTENTION_ALIGNED 2    // q, k and v rows are aligned to 16 bytes
#define FC_ATTENTION_SINKS 3      // each head has a score that adds to the sum of the weights
#define FC_ATTENTION_WIDE_SINKS 4 // they are float32, not q's type
#define FC_ATTENTION_PAGED 5      // keys and values lie in pages
#define FC_ATTENTION_NEW 11       // heads are made first; 6 to 10 and 12 are those of rope_kv.h

namespace foundry {

// Decode: a threadgroup takes up to `rows` query rows of one KV head and one split of the keys; its simdgroups take the
// tiles of 32 keys in turn. Which simdgroup and split a key belongs to depends on the key alone, so the result of a
// query does not depend on the queries beside it nor on keys it cannot see. How many keys a split has, how many
// simdgroups a threadgroup and how many lanes a key: core/tuning.h.
FOUNDRY_CONST uint32_t attention_decode_max_queries = 16; // more queries than this go to the prefill kernel
FOUNDRY_CONST uint32_t attention_near = 4096;             // short splits up to here, to fill the GPU, the first twice
                                                          // as long, which spares short contexts the merge;
FOUNDRY_CONST uint32_t attention_middle = 16384;          // those of twice that up to here, and longer ones beyond
FOUNDRY_CONST uint32_t attention_merge_simdgroups = 16;   // they take the splits in turn
FOUNDRY_CONST uint32_t attention_made_columns = 256;      // of heads that it makes; wider ones don't fit into registers

// Prefill: a simdgroup takes 8 query rows of up to so many columns; of wider ones, two take half of the columns each.
FOUNDRY_CONST uint32_t attention_prefill_simdgroups = 4, attention_prefill_columns = 256;
inline constexpr uint32_t attention_prefill_sharing(uint32_t widest) {
  return (widest + attention_prefill_columns - 1) / attention_prefill_columns;
}
inline constexpr uint32_t attention_prefill_rows(uint32_t widest) {
  return 8 * attention_prefill_simdgroups / attention_prefill_sharing(widest);
}

// Query rows that share a KV head are numbered query * group + head_in_group. Strides in elements; the last dimension
// of every tensor is contiguous.
struct AttentionArgs {
  uint32_t q_len, kv_len;
  uint32_t n_kv_heads, group; // group: query heads per KV head
  uint32_t splits;
  uint32_t keys, far_keys; // per split, multiples of 32 * simdgroups: of the near and of the last keys
  uint32_t causal;         // 0 or 1
  uint32_t window;         // 0: none
  float scale, softcap;
  uint32_t q_batch, q_head, q_token;
  uint32_t k_batch, k_head, k_token;
  uint32_t v_batch, v_head, v_token;
  uint32_t mask_batch, mask_head, mask_token;
  uint32_t u_batch, u_head, u_token; // of the value queries
  uint32_t has_kv_start;             // 0 or 1
  uint32_t has_step;                 // 0 or 1: kv_len is a bound; `step` has the position of the first query's key
  uint32_t has_rows;                 // 0 or 1: the same for each sequence by itself, with the number of its queries
  uint32_t table_row;  // pages: elements of a sequence's row of the table; k_batch and v_batch are those of a page
  uint32_t page_shift; // log2 of the tokens of a page
  uint32_t two_1024;   // kv_two_1024: a constant that the compiler knows would cost an instruction beside each mask
  RopeKvArgs heads;    // of a new token, where those are made first
};
static_assert(sizeof(AttentionArgs) == 32 * 4 + sizeof(RopeKvArgs), "shared with the host");

// Splits that `length` keys are in.
inline uint32_t attention_splits(uint32_t length, uint32_t keys, uint32_t far_keys) {
  const uint32_t near = length < attention_near ? length : attention_near;
  const uint32_t middle = length < attention_middle ? length : attention_middle;
  const uint32_t far_splits = (length - middle + far_keys - 1) / far_keys, near_splits = (near + keys - 1) / keys;
  return near_splits - (near_splits > 1) + (middle - near + 2 * keys - 1) / (2 * keys) + far_splits;
}

// Of one split: the largest score and the sum of exp(score - largest).
struct AttentionPartial {
  float largest, sum;
};
static_assert(sizeof(AttentionPartial) == 8, "shared with the host");

} // namespace foundry
