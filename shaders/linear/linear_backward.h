// Host and GPU share this: arguments of linear_backward.metal.
#pragma once
#include "common/rows.h"

namespace foundry {

// x_grad[m, k] = sum_n grad[m, n] W[n, k]
struct LinearBackwardArgs {
  uint32_t rows;       // M
  uint32_t n;          // outputs of the layer
  uint32_t k;          // its inputs
  uint32_t row_blocks; // blocks in a row of W
  Rows grad;
};
static_assert(sizeof(LinearBackwardArgs) == 36, "shared with the host");

} // namespace foundry
