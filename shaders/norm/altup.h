// Host and GPU share this: arguments and tuning of altup.metal.
#pragma once
#include "common/portable.h"

#define FC_ALTUP_SCALE 4 // function constants: the active stream's result is multiplied by a vector
#define FC_ALTUP_ONTO 5  // there is something that the matched row is added to

namespace foundry {

FOUNDRY_CONST uint32_t altup_max_streams = 8;
FOUNDRY_CONST uint32_t altup_per_thread = 8; // elements, of a row that is not longer than all threads take at once
FOUNDRY_CONST uint32_t altup_max_threads = 1024;

struct AltupArgs {
  uint32_t tokens;
  uint32_t hidden;
  uint32_t streams;
  uint32_t active; // the stream that the router looks at
  float eps;       // of the norm
  float scale;     // of the normed row
};
static_assert(sizeof(AltupArgs) == 24, "shared with the host");

struct AltupMatchArgs {
  uint32_t hidden;
  float least; // mean square, of a row that is made longer
  float scale;
};
static_assert(sizeof(AltupMatchArgs) == 12, "shared with the host");

} // namespace foundry
