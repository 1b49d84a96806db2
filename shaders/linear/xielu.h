// Host and GPU share this: arguments of xielu.metal.
#pragma once
#include "common/portable.h"

namespace foundry {

struct XieluArgs {
  uint32_t vectors; // of all of x
};
static_assert(sizeof(XieluArgs) == 4, "shared with the host");

} // namespace foundry
