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

// What is added to a sum, as it is in memory: a kernel that reads it before its products waits for it beside them.
template <typename T> struct Addends {
  T bias, residual; // 0 where there is none
};

template <typename T>
METAL_FUNC Addends<T> addends_of(uint m, uint n, device const T* bias, device const T* residual,
                                 constant LinearArgs& args) {
  return {args.has_bias ? bias[n] : T(0.0f), args.has_residual ? residual[row_offset(args.residual, m) + n] : T(0.0f)};
}

template <typename T>
METAL_FUNC void store_output(float sum, Addends<T> addends, uint m, uint n, device T* y, constant LinearArgs& args) {
  if (args.has_bias) sum += float(addends.bias);
  sum = activate(args.activation, sum);
  sum = args.has_residual ? metal::fma(args.scale, sum, float(addends.residual)) : sum * args.scale;
  y[m * args.n + n] = T(sum);
}

template <typename T>
METAL_FUNC void store_output(float sum, uint m, uint n, device const T* bias, device const T* residual, device T* y,
                             constant LinearArgs& args) {
  store_output(sum, addends_of(m, n, bias, residual, args), m, n, y, args);
}

} // namespace foundry
