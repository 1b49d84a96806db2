// Host and GPU share this: arguments and limits of mamba2.metal.
#pragma once
#include "common/portable.h"

#define FC_MAMBA2_CONV_BIAS 0 // function constants: what is added to the convolution, which tokens are no padding,
#define FC_MAMBA2_KEEP 1      // and which are of a prompt
#define FC_MAMBA2_PROMPT 2
#define FC_MAMBA2_NORM 3 // whether outputs are normed, behind the gate or before it
#define FC_MAMBA2_NORM_FIRST 4

namespace foundry {

FOUNDRY_CONST uint32_t mamba2_max_dim = 256;     // numbers of a head's values, and of a group's keys
FOUNDRY_CONST uint32_t mamba2_max_state = 32768; // numbers of a head's state, which lie in registers
FOUNDRY_CONST uint32_t mamba2_max_width = 8;     // of the convolution
FOUNDRY_CONST uint32_t mamba2_norm_threads = 256;

FOUNDRY_CONST uint32_t mamba2_least_chunked = 32;   // tokens of a prompt from which on it goes in chunks
FOUNDRY_CONST uint32_t mamba2_input_threads = 128;  // of its inputs: each has a column
FOUNDRY_CONST uint32_t mamba2_chunk_simdgroups = 8; // that share the scores of a head's chunk, at most

// A head's state, [values, keys], lies in the registers of so many simdgroups: each has some of the rows, a lane some
// of the columns.
constexpr uint32_t mamba2_simdgroups(uint32_t state) { return state <= 16384 ? 8 : 16; }

struct Mamba2Args {
  uint32_t heads, per_group; // and how many of them share keys and queries
  uint32_t group_size;       // numbers of their values together
  uint32_t channels;         // of the convolution
  uint32_t slots;
  uint32_t longest; // tokens of a run that goes token by token
  uint32_t runs_stride, table_stride, count_stride;
  uint32_t x_stride, dt_stride, z_stride; // from token to token
  uint32_t prompt_stride;
  float eps;
  float least, most; // that step sizes in prompts may be
  float factors[5];  // of z, x, B, C and dt
};
static_assert(sizeof(Mamba2Args) == 84, "shared with the host");

} // namespace foundry
