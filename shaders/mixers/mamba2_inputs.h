// What goes into Mamba2's state space: step sizes, and factors of what the convolution takes. Both kernels have these
// function constants, and may be parts of one library.
#pragma once
#include "common/activation.h"
#include "mixers/mamba2.h"

namespace foundry {

constant bool has_conv_bias [[function_constant(FC_MAMBA2_CONV_BIAS)]];
constant bool has_keep [[function_constant(FC_MAMBA2_KEEP)]];
constant bool has_prompt [[function_constant(FC_MAMBA2_PROMPT)]];

// Of a channel: those of all heads' x come first, `values`, then B of all groups, `keys`, then C.
METAL_FUNC float factor_of(uint channel, uint values, uint keys, constant Mamba2Args& args) {
  return args.factors[channel < values ? 1 : channel < values + keys ? 2 : 3];
}

// bounded: whether the token is one of a prompt.
METAL_FUNC float step_size(float dt, float bias, bool bounded, constant Mamba2Args& args) {
  const float free = softplus(metal::fma(dt, args.factors[4], bias));
  return bounded ? metal::min(metal::max(free, args.least), args.most) : free;
}

} // namespace foundry
