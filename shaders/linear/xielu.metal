// xIELU (https://arxiv.org/abs/2411.13010), an activation with two learned slopes, in f32, rounded once:
// a x^2 + beta x above 0, and b (expm1(min(x, eps)) - x) + beta x below, with a = softplus(alpha_p) and
// b = beta + softplus(alpha_n).
#include "linear/xielu.h"

#include "common/activation.h"
#include "common/vec.h"

using namespace metal;
using namespace foundry;

// exp(x) - 1 - x for x <= 0. Near 0, where that would be rounding errors, the series from x^2/2! to x^9/9!.
METAL_FUNC float exp_beyond_tangent(float x) {
  if (x < -0.5f)
    return exp(x) - 1.0f - x;
  float p = 0.0f, factorial = 362880.0f;
  for (int n = 9; n > 1; --n) {
    p = fma(p, x, 1.0f / factorial);
    factorial /= float(n);
  }
  return p * x * x;
}

// foundry-lint: instance(xielu<half, 8>)
// foundry-lint: instance(xielu<float, 1>)
template <typename T, int VEC>
[[kernel]] void xielu(
    device const T* x [[buffer(0)]],
    device const T* alpha_p [[buffer(1)]],
    device const T* alpha_n [[buffer(2)]],
    device const T* beta [[buffer(3)]],
    device const T* eps [[buffer(4)]],
    device T* y [[buffer(5)]],
    constant XieluArgs& args [[buffer(6)]],
    uint gid [[thread_position_in_grid]]) {
  const float linear = float(*beta), limit = float(*eps);
  const float above = softplus(float(*alpha_p)), below = linear + softplus(float(*alpha_n));
  if (gid < args.vectors) {
    float v[VEC];
    load(x + gid * VEC, v);
    for (int j = 0; j < VEC; ++j) {
      const float least = min(v[j], limit);
      const float curved = v[j] > 0.0f ? above * v[j] * v[j] : below * (exp_beyond_tangent(least) + (least - v[j]));
      v[j] = fma(linear, v[j], curved);
    }
    store(y + gid * VEC, v);
  }
}
