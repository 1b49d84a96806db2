// Host and GPU share this: arguments of glu_backward.metal. Elements of a thread are those of glu.h.
#pragma once
#include "linear/glu.h"

namespace foundry {

struct GluBackwardArgs {
  uint32_t n;               // elements of a row
  uint32_t threads_per_row; // ceil(n / glu_per_thread)
  Rows grad;
  Rows gate;
  Rows up;
  float gate_scale; // as in glu.h
};
static_assert(sizeof(GluBackwardArgs) == 72, "shared with the host");

} // namespace foundry
