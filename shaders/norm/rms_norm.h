// Host and GPU share this: arguments and tuning of rms_norm.metal.
#pragma once
#include "common/rows.h"

#define FC_RMS_NORM_RESIDUAL 0 // function constants: a residual is added after the norm
#define FC_RMS_NORM_SCALE 1    // the result, rounded, is multiplied by one number

namespace foundry {

// Elements of a row per thread; they stay in registers between the sum and the result. Short rows take fewer a thread,
// so that one row, at decode, still has several simdgroups.
FOUNDRY_CONST uint32_t rms_norm_per_thread = 8, rms_norm_per_thread_long = 16;
FOUNDRY_CONST uint32_t rms_norm_long = 2048;
FOUNDRY_CONST uint32_t rms_norm_max_threads = 1024;

struct RmsNormArgs {
  uint32_t hidden;
  float eps;
  Rows x;
  Rows residual;
};
static_assert(sizeof(RmsNormArgs) == 48, "shared with the host");

} // namespace foundry
