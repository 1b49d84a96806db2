// Activation functions, each a type with apply(float) and slope(float), its derivative. They need no erf or tanh (MSL
// has no erf, and tanh of a large argument is unsafe under fast math), never overflow to NaN, and keep relative
// accuracy in the negative tail.
#pragma once
#include "common/portable.h"

namespace foundry {

// log(1 + metal::exp(x)). MSL has no log1p; log(1 + t) = 2 atanh(s), s = t / (2 + t) <= 1/3, is accurate where t is
// small too.
METAL_FUNC float softplus(float x) {
  const float t = metal::exp(-metal::abs(x)), s = t / (2.0f + t);
  float p = 1.0f / 15.0f;
  for (int n = 13; n > 0; n -= 2) p = metal::fma(p, s * s, 1.0f / float(n));
  return metal::max(x, 0.0f) + 2.0f * s * p;
}

METAL_FUNC float sigmoid(float x) { return 1.0f / (1.0f + metal::exp(-x)); }

struct Identity {
  static float apply(float x) { return x; }
  static float slope(float) { return 1.0f; }
};

struct Silu {
  static float apply(float x) { return x / (1.0f + metal::exp(-x)); }
  static float slope(float x) { return sigmoid(x) * (1.0f + x * sigmoid(-x)); }
};

struct Sigmoid {
  static float apply(float x) { return sigmoid(x); }
  static float slope(float x) { return sigmoid(x) * sigmoid(-x); }
};

struct Softplus {
  static float apply(float x) { return softplus(x); }
  static float slope(float x) { return sigmoid(x); }
};

// NaN stays NaN.
struct Relu {
  static float apply(float x) { return x < 0.0f ? 0.0f : x; }
  static float slope(float x) { return x > 0.0f ? 1.0f : 0.0f; } // torch's at 0
};

// relu(x)^2. NaN stays NaN.
struct Relu2 {
  static float apply(float x) { return x < 0.0f ? 0.0f : x * x; }
  static float slope(float x) { return x < 0.0f ? 0.0f : 2.0f * x; }
};

// 0.5 (1 + tanh u) is the logistic function of 2u, which has no cancellation.
struct GeluTanh {
  FOUNDRY_CONST float cubic = 0.044715f, root = 0.7978845608f; // sqrt(2 / pi)

  static float apply(float x) {
    const float u = root * metal::fma(cubic * x * x, x, x);
    return x / (1.0f + metal::exp(-2.0f * u));
  }
  static float slope(float x) {
    const float t = x > 16.0f ? 16.0f : x < -16.0f ? -16.0f : x; // it is 1 or 0 beyond, where squares could overflow
    const float z = 2.0f * root * metal::fma(cubic * t * t, t, t), s = sigmoid(z);
    return s + t * s * sigmoid(-z) * (2.0f * root * (1.0f + 3.0f * cubic * t * t));
  }
};

// x * Phi(x) with Phi(-t) = exp(-t*t/2) * u * P(u), u = 1 / (1 + 0.35 t), t >= 0. P is a least-squares fit of relative
// error 3e-7 in f32 arithmetic.
struct Gelu {
  static float apply(float x) { return x * below(x); }
  static float slope(float x) { return below(x) + 0.3989422804f * x * metal::exp(-0.5f * x * x); }

  static float below(float x) { // Phi(x)
    const float t = metal::abs(x);
    const float u = 1.0f / (1.0f + 0.35f * t);
    float p = -0.02955256961f;
    p = metal::fma(p, u, 0.1458925009f);
    p = metal::fma(p, u, -0.2595476508f);
    p = metal::fma(p, u, 0.1633791924f);
    p = metal::fma(p, u, -0.02587083541f);
    p = metal::fma(p, u, 0.1066140011f);
    p = metal::fma(p, u, 0.1195701510f);
    p = metal::fma(p, u, 0.1398955584f);
    p = metal::fma(p, u, 0.1396196187f);
    const float tail = metal::exp(-0.5f * t * t) * (u * p); // Phi(-t)
    return x < 0.0f ? tail : 1.0f - tail;
  }
};

// gpt-oss: the logistic function is steeper, and what gate and up may be is bounded. NaN stays NaN.
struct ClampedSwiglu {
  FOUNDRY_CONST float limit = 7.0f;

  static float apply(float gate) {
    const float x = gate > limit ? limit : gate;
    return x / (1.0f + metal::exp(-1.702f * x));
  }
  static float slope(float gate) {
    const float z = 1.702f * gate;
    return gate > limit ? 0.0f : sigmoid(z) * (1.0f + z * sigmoid(-z));
  }
  static float factor(float up) { return (up > limit ? limit : up < -limit ? -limit : up) + 1.0f; }
};

// What a gate lets through of `up`, and the gradients of both for a `grad` of that.
template <typename Activation> struct Gate {
  static float apply(float gate, float up) { return Activation::apply(gate) * up; }
  static float gate_grad(float gate, float up, float grad) { return grad * up * Activation::slope(gate); }
  static float up_grad(float gate, float, float grad) { return grad * Activation::apply(gate); }
};
template <> struct Gate<ClampedSwiglu> {
  static float apply(float gate, float up) { return ClampedSwiglu::apply(gate) * ClampedSwiglu::factor(up); }
  static float gate_grad(float gate, float up, float grad) {
    return grad * ClampedSwiglu::factor(up) * ClampedSwiglu::slope(gate);
  }
  static float up_grad(float gate, float up, float grad) {
    return metal::abs(up) > ClampedSwiglu::limit ? 0.0f : grad * ClampedSwiglu::apply(gate);
  }
};

} // namespace foundry
