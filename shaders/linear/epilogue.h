// What happens to a finished sum of a linear layer before it is stored: one function, so all kernels round alike.
#pragma once
#include "common/activation.h"
#include "linear/linear.h"

namespace foundry {

METAL_FUNC float activate(uint activation, float v) {
  switch (activation) {
  case activation_silu: return Silu::apply(v);
  case activation_gelu_tanh: return GeluTanh::apply(v);
  case activation_gelu: return Gelu::apply(v);
  case activation_sigmoid: return Sigmoid::apply(v);
  case activation_relu: return Relu::apply(v);
  case activation_relu2: return Relu2::apply(v);
  case activation_softplus: return Softplus::apply(v);
  default: return v;
  }
}

METAL_FUNC float gated(uint activation, float gate, float up) {
  return activation == activation_clamped_swiglu ? Gate<ClampedSwiglu>::apply(gate, up)
                                                 : activate(activation, gate) * up;
}

template <typename T>
METAL_FUNC void store_output(float sum, uint m, uint n, device const T* bias, device const T* residual, device T* y,
                             constant LinearArgs& args) {
  if (args.has_bias) sum += float(bias[n]);
  sum = activate(args.activation, sum);
  if (args.has_residual)
    sum = metal::fma(args.scale, sum, float(residual[row_offset(args.residual, m) + n]));
  else
    sum *= args.scale;
  y[m * args.n + n] = T(sum);
}

} // namespace foundry
