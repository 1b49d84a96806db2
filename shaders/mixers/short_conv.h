// Host and GPU share this: arguments and limits of short_conv.metal.
#pragma once
#include "common/portable.h"

#define FC_SHORT_CONV_BIAS 5 // function constant: what is added to the convolution

namespace foundry {

FOUNDRY_CONST uint32_t short_conv_max_width = 8;
FOUNDRY_CONST uint32_t short_conv_threads = 128; // of a threadgroup: each has a channel
FOUNDRY_CONST uint32_t short_conv_tokens = 16;   // that a thread takes one after the other: each input is read once

struct ShortConvArgs {
  uint32_t channels, stride; // of a token's row
  uint32_t slots;
  uint32_t runs_stride, table_stride, count_stride;
};
static_assert(sizeof(ShortConvArgs) == 24, "shared with the host");

} // namespace foundry
