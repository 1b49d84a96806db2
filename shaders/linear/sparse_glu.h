// Host and GPU share this: arguments and tuning of sparse_glu.metal.
#pragma once
#include "common/rows.h"

namespace foundry {

FOUNDRY_CONST uint32_t sparse_glu_per_thread = 8; // elements, of a row that all threads take at once
FOUNDRY_CONST uint32_t sparse_glu_max_threads = 1024;

struct SparseGluArgs {
  uint32_t n;       // elements of a row
  float deviations; // of the gates above their mean: what is below is cut off
  Rows gate;
  Rows up;
};
static_assert(sizeof(SparseGluArgs) == 48, "shared with the host");

} // namespace foundry
