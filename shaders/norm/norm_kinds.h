// The three ways in which Hugging Face models apply an RMSNorm's weight. They differ in what is rounded to T first.
#pragma once
#include "common/portable.h"

namespace foundry {

struct Llama {
  template <typename T> static float apply(float normed, float w) { return w * float(T(normed)); }
};
struct Olmo {
  template <typename T> static float apply(float normed, float w) { return w * normed; }
};
struct Gemma {
  template <typename T> static float apply(float normed, float w) { return (1.0f + w) * normed; }
};

} // namespace foundry
