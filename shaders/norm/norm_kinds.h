// The three ways in which Hugging Face models apply an RMSNorm's weight. They differ in what is rounded to T first.
// factor: what a normed element is multiplied by.
#pragma once
#include "common/portable.h"

namespace foundry {

struct Llama {
  template <typename T> static float apply(float normed, float w) { return w * float(T(normed)); }
  static float factor(float w) { return w; }
};
struct Olmo {
  template <typename T> static float apply(float normed, float w) { return w * normed; }
  static float factor(float w) { return w; }
};
struct Gemma {
  template <typename T> static float apply(float normed, float w) { return (1.0f + w) * normed; }
  static float factor(float w) { return 1.0f + w; }
};

} // namespace foundry
