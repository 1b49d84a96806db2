// Host and GPU share this: arguments of permute_columns.metal.
#pragma once
#include "common/portable.h"

namespace foundry {

FOUNDRY_CONST uint32_t permute_per_thread = 8; // elements: their numbers are two 16-byte loads

struct PermuteColumnsArgs {
  uint32_t rows;
  uint32_t n; // elements of a row
  uint32_t threads_per_row;
};
static_assert(sizeof(PermuteColumnsArgs) == 12, "shared with the host");

} // namespace foundry
