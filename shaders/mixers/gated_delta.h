// Host and GPU share this: arguments and limits of gated_delta.metal.
#pragma once
#include "mixers/chunks.h"

namespace foundry {

FOUNDRY_CONST uint32_t gated_delta_max_dim = 256;     // of a head's keys, and of its values
FOUNDRY_CONST uint32_t gated_delta_max_state = 32768; // numbers of a head's state, which lie in registers
FOUNDRY_CONST uint32_t gated_delta_max_width = 8;     // of the convolution

FOUNDRY_CONST uint32_t gated_delta_chunk_keys = 128;   // heads may have, to go in chunks
FOUNDRY_CONST uint32_t gated_delta_chunk_columns = 16; // of a head's state, of a threadgroup

// A head's state, [keys, values], lies in the registers of so many simdgroups: each has some of the rows, a lane some
// of the columns. Wide values leave threadgroup memory for fewer.
constexpr uint32_t gated_delta_simdgroups(uint32_t value_dim) { return value_dim <= 128 ? 16 : 8; }

// Floats of a chunk of a head, of so many decays, that its tokens need of each other: two matrices, and the decays if
// they are of rows.
constexpr uint32_t gated_delta_solved(uint32_t decays) {
  return 2 * recurrent_chunk * recurrent_chunk + (decays == 1 ? 0 : decays);
}

// Where rows of x[tokens, key heads, value heads of each, n] begin; in elements.
struct HeadStrides {
  uint32_t token, key_head, head;
};

struct GatedDeltaArgs {
  uint32_t key_heads, per_key; // value heads, and how many share a key head
  uint32_t slots;
  uint32_t longest; // tokens of a run that goes token by token
  uint32_t runs_stride, table_stride, count_stride;
  float eps, beta_scale;
  float log_bound;       // below it no logarithm of a decay lies; 0: there is none
  uint32_t sigmoid_gate; // whether outputs are gated by sigmoid(z), not silu(z)
  HeadStrides q, k, v, z, b, a;
};
static_assert(sizeof(GatedDeltaArgs) == 116, "shared with the host");

} // namespace foundry
