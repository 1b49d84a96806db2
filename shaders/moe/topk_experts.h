// The choice of a token's experts: the few that compare best, the lowest index among equals, weighed by their scores.
#pragma once
#include "common/activation.h"
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

// What experts are weighed by and what they are compared by. `correction` is read if there is one.
template <typename Logits, typename C> struct Scores {
  Logits logits;
  device const C* correction;
  constant ChoiceArgs& args;
  float largest, mass; // of the softmax

  METAL_FUNC float score(uint e) const thread {
    return args.sigmoid ? sigmoid(logits.at(e)) : metal::exp(logits.at(e) - largest) / mass;
  }
  METAL_FUNC float rating(uint e) const thread {
    return (args.by_logit ? logits.at(e) : score(e)) + (args.has_correction ? float(correction[e]) : 0.0f);
  }
};

// A bit for each group that a token's experts may be of. All lanes of one simdgroup call this.
template <typename Scores> METAL_FUNC uint top_groups(thread const Scores& scores, ushort lane) {
  const uint groups = scores.args.groups, each = scores.args.experts / groups;
  float best = -INFINITY, second = -INFINITY;
  for (uint i = 0; lane < groups && i < each; ++i) {
    const float rating = scores.rating(lane * each + i);
    second = metal::max(second, metal::min(best, rating));
    best = metal::max(best, rating);
  }
  const uint own = lane < groups ? order_of(best + (scores.args.group_best > 1 ? second : 0.0f)) : 0;
  uint better = 0;
  for (uint g = 0; g < groups; ++g) {
    const uint other = metal::simd_broadcast(own, ushort(g));
    better += other > own || (other == own && g < lane);
  }
  return metal::simd_or(lane < groups && better < scores.args.top_groups ? 1u << lane : 0u);
}

// The score of an expert that is chosen among those which `taken` has no bit of. All lanes of one simdgroup call this.
template <typename Logits>
METAL_FUNC float score_in_turn(thread const Logits& logits, float most, uint taken, constant ChoiceArgs& args,
                               ushort lane) {
  float mass = 0.0f;
  for (uint e = lane, i = 0; e < args.experts; e += simd_width, ++i) {
    const float own = logits.at(e);
    const bool far = (most - own) / metal::max(metal::abs(own), most) > args.near;
    if (!far && !(taken >> i & 1)) mass += metal::exp(own - most);
  }
  return 1.0f / metal::simd_sum(mass);
}

// Writes a token's row of ids and weights; all lanes of one simdgroup call this.
template <typename Logits, typename C>
METAL_FUNC void choose_experts(thread const Logits& logits, device const C* correction, float shared, uint token,
                               constant ChoiceArgs& args, ushort lane, device int* ids, device float* weights) {
  float largest = -INFINITY, mass = 0.0f;
  for (uint e = lane; e < args.experts; e += simd_width) largest = metal::max(largest, logits.at(e));
  largest = metal::simd_max(largest);
  for (uint e = lane; e < args.experts; e += simd_width) mass += metal::exp(logits.at(e) - largest);
  mass = metal::simd_sum(mass);
  const Scores<Logits, C> scores = {logits, correction, args, largest, mass};
  const uint groups = args.groups > 1 ? top_groups(scores, lane) : 1, each = args.experts / args.groups;

  uint taken = 0; // bit i: expert lane + 32 i
  uint mine = 0;
  float weight = 0.0f, all = 0.0f;
  for (uint j = 0; j < args.chosen; ++j) {
    uint best = 0, at = ~0u;
    for (uint e = lane, i = 0; e < args.experts; e += simd_width, ++i) {
      const uint order = order_of(scores.rating(e));
      if (!(taken >> i & 1) && (groups >> e / each & 1) && order > best) {
        best = order;
        at = e;
      }
    }
    const uint winner = metal::simd_min(best == metal::simd_max(best) ? at : ~0u);
    const float score =
        args.in_turn ? score_in_turn(logits, logits.at(winner), taken, args, lane) : scores.score(winner);
    if (winner % simd_width == lane) taken |= 1u << winner / simd_width;
    all += score;
    if (lane == j) {
      mine = winner;
      weight = score;
    }
  }
  const uint columns = args.chosen + args.has_shared;
  if (lane < args.chosen) {
    ids[token * columns + lane] = int(mine);
    weights[token * columns + lane] = args.scale * (args.normalize ? weight / (all + args.least_sum) : weight);
  }
  if (lane == 0 && args.has_shared) {
    ids[token * columns + args.chosen] = 0;
    weights[token * columns + args.chosen] = sigmoid(shared);
  }
}

} // namespace foundry
