// What goes into the gated delta rule, from the outputs of projections: convolution and gates.
#pragma once
#include "common/activation.h"
#include "mixers/gated_delta.h"

namespace foundry {

METAL_FUNC uint offset(constant HeadStrides& strides, uint token, uint key_head, uint head) {
  return token * strides.token + key_head * strides.key_head + head * strides.head;
}

// One channel of the convolution after token `t` of a run: its last W inputs, of which those from before the run are in
// `before`, if there were any. Also what its state becomes. factor: of x. An address is chosen, not a branch: then all
// reads are in flight together.
template <typename T, int W>
METAL_FUNC void last_inputs(device const T* x, uint stride, int t, device const T* before, bool any,
                            thread T (&last)[W], float factor = 1.0f) {
  for (int w = 0; w < W; ++w) {
    const int at = t - (W - 1) + w;
    const bool own = at >= 0;
    device const T* from = own ? x + at * stride : before + W + at;
    last[w] = T((own || any ? float(*from) : 0.0f) * (own ? factor : 1.0f));
  }
}

template <typename T, int W>
METAL_FUNC float convolve(thread const T (&inputs)[W], device const T* weight, float bias = 0.0f) {
  float sum = bias;
  for (int w = 0; w < W; ++w) sum = metal::fma(float(inputs[w]), float(weight[w]), sum);
  return Silu::apply(sum);
}

// The logarithm of what a state decays by, of `step`: the projection with its bias.
METAL_FUNC float log_decay(float step, float a_log, constant GatedDeltaArgs& args) {
  const float rate = metal::exp(a_log);
  return args.log_bound == 0.0f ? -rate * softplus(step) : args.log_bound * sigmoid(rate * step);
}

METAL_FUNC float output_gate(float z, constant GatedDeltaArgs& args) {
  return args.sigmoid_gate != 0 ? sigmoid(z) : Silu::apply(z);
}

} // namespace foundry
