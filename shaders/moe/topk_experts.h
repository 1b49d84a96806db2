// The choice of a token's experts: softmax over all experts' logits, the largest few, the lowest index among equals.
#pragma once
#include "moe/moe.h"

namespace foundry {

// Where logits lie.
struct InThreadgroup {
  threadgroup const float* logits;
  METAL_FUNC float at(uint i) const thread { return logits[i]; }
};
template <typename T> struct InDevice {
  device const T* logits;
  METAL_FUNC float at(uint i) const thread { return float(logits[i]); }
};

// Whole numbers in the order of floats, from 1; NaN comes last, as torch.topk has it.
METAL_FUNC uint order_of(float v) {
  const uint bits = as_type<uint>(v + 0.0f); // -0 equals 0
  return metal::isnan(v) ? ~0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Writes a token's row of ids and weights; all lanes of one simdgroup call this.
template <typename Logits>
METAL_FUNC void choose_experts(thread const Logits& logits, float shared, uint token, constant ChoiceArgs& args,
                               ushort lane, device int* ids, device float* weights) {
  float largest = -INFINITY, mass = 0.0f;
  for (uint e = lane; e < args.experts; e += simd_width) largest = metal::max(largest, logits.at(e));
  largest = metal::simd_max(largest);
  for (uint e = lane; e < args.experts; e += simd_width) mass += metal::exp(logits.at(e) - largest);
  mass = metal::simd_sum(mass);

  uint taken = 0; // bit i: expert lane + 32 i
  uint mine = 0;
  float weight = 0.0f, all = 0.0f;
  for (uint j = 0; j < args.chosen; ++j) {
    uint best = 0, at = ~0u;
    for (uint e = lane, i = 0; e < args.experts; e += simd_width, ++i) {
      const uint order = order_of(logits.at(e));
      if (!(taken >> i & 1) && order > best) {
        best = order;
        at = e;
      }
    }
    const uint winner = metal::simd_min(best == metal::simd_max(best) ? at : ~0u);
    if (winner % simd_width == lane) taken |= 1u << winner / simd_width;
    const float p = metal::exp(logits.at(winner) - largest) / mass;
    all += p;
    if (lane == j) {
      mine = winner;
      weight = p;
    }
  }
  const uint columns = args.chosen + args.has_shared;
  if (lane < args.chosen) {
    ids[token * columns + lane] = int(mine);
    weights[token * columns + lane] = args.normalize ? weight / all : weight;
  }
  if (lane == 0 && args.has_shared) {
    ids[token * columns + args.chosen] = 0;
    weights[token * columns + args.chosen] = 1.0f / (1.0f + metal::exp(-shared));
  }
}

} // namespace foundry
