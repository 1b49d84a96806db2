// Host and GPU share this: arguments and tuning of glu.metal.
#pragma once
#include "common/rows.h"

namespace foundry {

FOUNDRY_CONST uint32_t glu_per_thread = 8; // elements: one 16-byte load of half an operand

struct GluArgs {
  uint32_t n;               // elements of a row
  uint32_t threads_per_row; // ceil(n / glu_per_thread)
  Rows gate;
  Rows up;
  float gate_scale; // of gates, before the activation
};
static_assert(sizeof(GluArgs) == 52, "shared with the host");

} // namespace foundry
