// The choice of a token's experts: the few that compare best, the lowest index among equals, weighed by their scores.
#pragma once
#include "common/activation.h"
#include "moe/moe.h"

namespace foundry {

// Whole numbers in the order of floats, from 1; NaN comes last, as torch.topk has it.
METAL_FUNC uint order_of(float v) {
  const uint bits = as_type<uint>(v + 0.0f); // -0 equals 0
  return metal::isnan(v) ? ~0u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// What experts are weighed by and what they are compared by. `correction` is read if there is one.
template <typename T, typename C> struct Scores {
  device const T* logits;
  device const C* correction;
  constant ChoiceArgs& args;
  float largest, mass; // of the softmax

  METAL_FUNC float logit(uint e) const thread { return float(logits[e]); }
  METAL_FUNC float score(uint e) const thread {
    return args.sigmoid ? sigmoid(logit(e)) : metal::exp(logit(e) - largest) / mass;
  }
  METAL_FUNC float rating(uint e) const thread {
    return (args.by_logit ? logit(e) : score(e)) + (args.has_correction ? float(correction[e]) : 0.0f);
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

// The score of an expert of logit `most`, chosen among those whose order is not 0. All lanes of one simdgroup call
// this.
template <typename Scores>
METAL_FUNC float score_in_turn(thread const Scores& scores, float most, threadgroup const uint* orders, ushort lane) {
  float mass = 0.0f;
  for (uint e = lane; e < scores.args.experts; e += simd_width) {
    const float own = scores.logit(e);
    const bool far = (most - own) / metal::max(metal::abs(own), most) > scores.args.near;
    if (!far && orders[e]) mass += metal::exp(own - most);
  }
  return 1.0f / metal::simd_sum(mass);
}

// Of a lane's experts the one that compares best, with the lowest index among equals.
struct Best {
  uint order, expert;
  METAL_FUNC void find(threadgroup const uint* orders, uint experts, ushort lane) thread {
    order = 0;
    expert = ~0u;
    for (uint e = lane; e < experts; e += simd_width) {
      const uint other = orders[e];
      expert = other > order ? e : expert;
      order = metal::max(order, other);
    }
  }
};

// Writes a token's row of ids and weights; all lanes of one simdgroup call this. `orders`: of its experts, which only
// their own lane reads and writes; those that are taken, or in no open group, have 0.
template <typename T, typename C>
METAL_FUNC void choose_experts(device const T* logits, device const C* correction, float shared, uint token,
                               constant ChoiceArgs& args, ushort lane, threadgroup uint* orders, device int* ids,
                               device float* weights) {
  const uint experts = args.experts, chosen = args.chosen;
  Scores<T, C> scores = {logits, correction, args, -INFINITY, 0.0f};
  if (!args.sigmoid) {
    for (uint e = lane; e < experts; e += simd_width) scores.largest = metal::max(scores.largest, scores.logit(e));
    scores.largest = metal::simd_max(scores.largest);
    for (uint e = lane; e < experts; e += simd_width) scores.mass += metal::exp(scores.logit(e) - scores.largest);
    scores.mass = metal::simd_sum(scores.mass);
  }
  const bool grouped = args.groups > 1;
  const uint open = grouped ? top_groups(scores, lane) : 1, each = experts / args.groups;
  for (uint e = lane; e < experts; e += simd_width)
    orders[e] = !grouped || (open >> e / each & 1) ? order_of(scores.rating(e)) : 0;

  Best best;
  best.find(orders, experts, lane);
  uint mine = 0;
  float weight = 0.0f;
  for (uint j = 0; j < chosen; ++j) {
    const uint winner = metal::simd_min(best.order == metal::simd_max(best.order) ? best.expert : ~0u);
    const float in_turn = args.in_turn ? score_in_turn(scores, scores.logit(winner), orders, lane) : 0.0f;
    if (winner == best.expert) {
      orders[winner] = 0;
      best.find(orders, experts, lane);
    }
    if (lane == j) {
      mine = winner;
      weight = in_turn;
    }
  }
  if (lane < chosen && !args.in_turn) weight = scores.score(mine);
  const float all = metal::simd_sum(lane < chosen ? weight : 0.0f);
  const uint columns = chosen + args.has_shared;
  if (lane < chosen) {
    ids[token * columns + lane] = int(mine);
    weights[token * columns + lane] = args.scale * (args.normalize ? weight / (all + args.least_sum) : weight);
  }
  if (lane == 0 && args.has_shared) {
    ids[token * columns + chosen] = 0;
    weights[token * columns + chosen] = args.shared_weight != 0.0f ? args.shared_weight : sigmoid(shared);
  }
}

} // namespace foundry
