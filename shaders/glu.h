// Host and GPU share this: arguments and tuning of glu.metal.
#pragma once
#include "rows.h"

namespace foundry {

FOUNDRY_CONST uint32_t glu_vectors_per_thread = 2; // 16 bytes of half per operand in flight

struct GluArgs {
  uint32_t n;               // elements of a row
  uint32_t threads_per_row; // ceil(n / (vector width * glu_vectors_per_thread))
  Rows gate;
  Rows up;
};
static_assert(sizeof(GluArgs) == 48, "shared with the host");

} // namespace foundry
