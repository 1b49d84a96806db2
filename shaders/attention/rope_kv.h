// Host and GPU share this: arguments of rope_kv_dense.metal.
#pragma once
#include "common/portable.h"

#define FC_ROPE_ROTATE 6     // function constant: false for layers without position embedding (NoPE)
#define FC_ROPE_NORM 7       // new_heads.h: q and k heads pass a norm
#define FC_ROPE_PAGED 8      // rope_kv.metal: the caches lie in pages
#define FC_ROPE_NORM_V 9     // with norms of q and k heads: v heads pass one without a weight
#define FC_ROPE_NORM_ROWS 10 // those norms are of all heads at once: of rows of q and k
#define FC_ROPE_NORM_LATE 12 // q and k heads pass their norm after the rotation

namespace foundry {

FOUNDRY_CONST uint32_t norm_rope_max_head_dim = 512;
FOUNDRY_CONST uint32_t rope_store_simdgroups = 4; // heads of a threadgroup

// Elements that a lane has of heads of up to so many columns: the order of their sums of squares.
inline constexpr uint32_t head_elements(uint32_t widest) {
  return widest <= 64 ? 2 : widest <= 128 ? 4 : widest <= 256 ? 8 : 16;
}

// How rms_norm.metal sums a row's squares, whose order norms of rows keep: by so many threads, each of which takes so
// many elements at a time, 8 or 1.
struct RowNorm {
  uint32_t threads, vector;
};

// Strides in elements; the last dimension of every tensor is contiguous.
struct RopeKvArgs {
  uint32_t rows; // batch * q_len
  uint32_t q_len, n_heads, n_kv_heads;
  uint32_t head_dim, value_dim, rotary_dim;
  uint32_t units;         // threads per head: max(head_dim, value_dim) / (2 * vector width)
  uint32_t start;         // position in the cache of the first new token; with a step, the last that there is room for
  uint32_t has_step;      // 0 or 1: step[0] is that position
  uint32_t has_positions; // 0 or 1: cos and sin are tables, of which positions[batch, token] is the row
  uint32_t table_rows;
  uint32_t interleaved;  // 0 or 1: elements 2 i and 2 i + 1 rotate together, not i and i + rotary_dim / 2
  uint32_t deinterleave; // 0 or 1: those go to i and i + rotary_dim / 2
  uint32_t key_columns;  // from the columns of cos and sin for queries to those for keys; 0: the same
  float eps;             // of the norms of heads or rows
  RowNorm q_row, k_row;  // with norms of rows
  uint32_t q_batch, q_token, q_head;
  uint32_t k_batch, k_token;
  uint32_t v_batch, v_token;
  uint32_t cos_batch, cos_token;
  uint32_t sin_batch, sin_token;
  uint32_t k_cache_batch, k_cache_head, k_cache_token;
  uint32_t v_cache_batch, v_cache_head, v_cache_token;
  // rope_kv.metal: rows[batch] is where a sequence's first new token goes and how many it has. Pages: ..._batch
  // are those of a page, table_row the elements of a sequence's row of the table, page_shift log2 of a page's tokens.
  uint32_t has_rows, table_row, page_shift, pages;
};
static_assert(sizeof(RopeKvArgs) == 41 * 4, "shared with the host");

} // namespace foundry
