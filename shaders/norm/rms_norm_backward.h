// Host and GPU share this: arguments and tuning of rms_norm_backward.metal. Threads of a row are those of rms_norm.h.
#pragma once
#include "norm/rms_norm.h"

namespace foundry {

// The weight's gradient: simdgroups of a threadgroup, which share the rows of simd_width columns, and rows that one of
// them adds up before it adds that sum to the others', so that errors don't grow with the number of rows.
FOUNDRY_CONST uint32_t rms_norm_weight_simdgroups = 16;
FOUNDRY_CONST uint32_t rms_norm_weight_run = 32;

struct RmsNormBackwardArgs {
  uint32_t hidden;
  float eps;
  Rows grad;
  Rows x;
};
static_assert(sizeof(RmsNormBackwardArgs) == 48, "shared with the host");

struct RmsNormWeightArgs {
  uint32_t hidden;
  uint32_t rows;
  Rows grad;
  Rows x;
};
static_assert(sizeof(RmsNormWeightArgs) == 48, "shared with the host");

} // namespace foundry
