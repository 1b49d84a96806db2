// What goes into Mamba2's state space: step sizes, and factors of what the convolution takes.
#pragma once
#include "common/activation.h"
#include "mixers/mamba2.h"

namespace foundry {

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
