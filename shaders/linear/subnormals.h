// Host and GPU share this: arguments of subnormals.metal.
#pragma once
#include "common/portable.h"

namespace foundry {

FOUNDRY_CONST uint32_t subnormal_zero = 128; // that codes are around
FOUNDRY_CONST uint32_t subnormal_words = 4;

struct SubnormalArgs {
  uint32_t words[subnormal_words]; // of four codes
  float unit;                      // 2^24, which no compiler may know
};
static_assert(sizeof(SubnormalArgs) == 20, "shared with the host");

} // namespace foundry
