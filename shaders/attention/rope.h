// Host and GPU share this: arguments of rope.metal.
#pragma once
#include "common/portable.h"

namespace foundry {

// Strides in elements; the last dimension of every tensor is contiguous.
struct RopeArgs {
  uint32_t tokens, heads, head_dim, rotary_dim;
  uint32_t units; // threads per head: head_dim / (2 * vector width)
  uint32_t x_batch, x_head, x_token;
  uint32_t cos_batch, cos_token;
  uint32_t sin_batch, sin_token;
  uint32_t interleaved; // 0 or 1: elements 2 i and 2 i + 1 rotate together, not i and i + rotary_dim / 2
  uint32_t transposed;  // 0 or 1: by the transposed matrix, as gradients do
};
static_assert(sizeof(RopeArgs) == 14 * 4, "shared with the host");

} // namespace foundry
