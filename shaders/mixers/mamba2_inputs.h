// What goes into Mamba2's state space beside the convolution.
#pragma once
#include "common/activation.h"
#include "mixers/mamba2.h"

namespace foundry {

// bounded: whether the token is one of a prompt.
METAL_FUNC float step_size(float dt, float bias, bool bounded, constant Mamba2Args& args) {
  const float free = softplus(dt + bias);
  return bounded ? metal::min(metal::max(free, args.least), args.most) : free;
}

} // namespace foundry
