// Host and GPU share this: arguments and tuning of rms_norm.metal.
#pragma once
#include "rows.h"

#define FC_RMS_NORM_RESIDUAL 0 // function constant: a residual is added after the norm

namespace foundry {

// Elements of a row per thread: two four-wide loads. One thread per 4 leaves Apple GPUs waiting on the reduction.
FOUNDRY_CONST uint32_t rms_norm_per_thread = 8;
FOUNDRY_CONST uint32_t rms_norm_max_threads = 1024;

struct RmsNormArgs {
  uint32_t hidden;
  float eps;
  float scale; // add_rms_norm only: h = residual + scale * x
  Rows x;
  Rows residual;
};
static_assert(sizeof(RmsNormArgs) == 52, "shared with the host");

} // namespace foundry
