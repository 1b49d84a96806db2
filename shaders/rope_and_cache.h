// Host and GPU share this: arguments of rope_and_cache.metal.
#pragma once
#include "portable.h"

#define FC_ROPE_ROTATE 0 // function constant: false for layers without position embedding (NoPE)

namespace foundry {

// Strides in elements; the last dimension of every tensor is contiguous.
struct RopeAndCacheArgs {
  uint32_t q_len, n_heads, n_kv_heads;
  uint32_t head_dim, value_dim, rotary_dim;
  uint32_t units; // threads per head: max(head_dim, value_dim) / (2 * vector width)
  uint32_t start; // position in the cache of the first new token
  uint32_t q_batch, q_token;
  uint32_t k_batch, k_token;
  uint32_t v_batch, v_token;
  uint32_t cos_batch, cos_token;
  uint32_t sin_batch, sin_token;
  uint32_t k_cache_batch, k_cache_head, k_cache_token;
  uint32_t v_cache_batch, v_cache_head, v_cache_token;
};
static_assert(sizeof(RopeAndCacheArgs) == 24 * 4, "shared with the host");

} // namespace foundry
