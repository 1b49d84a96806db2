// Host and GPU share this: arguments of reorder.metal.
#pragma once
#include "portable.h"

namespace foundry {

FOUNDRY_CONST uint32_t reorder_per_thread = 8; // elements: their numbers are two 16-byte loads

struct ReorderArgs {
  uint32_t rows;
  uint32_t n; // elements of a row
  uint32_t threads_per_row;
};
static_assert(sizeof(ReorderArgs) == 12, "shared with the host");

} // namespace foundry
