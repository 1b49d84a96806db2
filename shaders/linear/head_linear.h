// Host and GPU share this: arguments and sizes of head_linear.metal.
#pragma once
#include "common/portable.h"

namespace foundry {

FOUNDRY_CONST uint32_t head_linear_simdgroups = 4; // of a threadgroup
FOUNDRY_CONST uint32_t head_linear_outputs = 4;    // of a simdgroup, where rows are contiguous

// Strides in elements. stride: from a row of a head's matrix to the next; or from a column, if columns are contiguous.
struct HeadLinearArgs {
  uint32_t heads, n, k;
  uint32_t x_token, x_head;
  uint32_t w_head, stride;
};
static_assert(sizeof(HeadLinearArgs) == 28, "shared with the host");

} // namespace foundry
