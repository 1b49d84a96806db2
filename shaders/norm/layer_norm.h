// Host and GPU share this: arguments and tuning of layer_norm.metal.
#pragma once
#include "common/rows.h"

#define FC_LAYER_NORM_WEIGHT 2 // function constants: what the normed row is multiplied by, and what is added
#define FC_LAYER_NORM_BIAS 3

namespace foundry {

FOUNDRY_CONST uint32_t layer_norm_per_thread = 8; // elements, of a row that is not longer than all threads take at once
FOUNDRY_CONST uint32_t layer_norm_max_threads = 1024;

struct LayerNormArgs {
  uint32_t hidden;
  float eps;
  float offset; // added to the weight
  Rows x;
};
static_assert(sizeof(LayerNormArgs) == 32, "shared with the host");

} // namespace foundry
