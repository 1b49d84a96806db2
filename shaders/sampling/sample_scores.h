// What Hugging Face's processors before the temperature make of one score, in their order.
#pragma once
#include "sampling/sample.h"

namespace foundry {

// One bit for each rule that bans its tokens at this length, before and after tokens are forced.
METAL_FUNC uint active_rules(device const SampleParams& params, int length) {
  return rule_bad_word | rule_suppressed | (length < params.min_length ? rule_min_length : 0) |
         (length < params.min_new_length ? rule_min_new : 0) |
         ((params.stages & stage_forced_bos) && length == 1 ? rule_forced_bos : 0) |
         (length == params.forced_eos_length ? rule_forced_eos : 0) |
         (length == params.begin_index ? rule_begin_suppressed : 0);
}

// count: 2 * (how often the token was generated) + (whether the prompt has it).
METAL_FUNC float penalised(float score, uint count, device const SampleParams& params) {
  if (count) score = score < 0.0f ? score * params.repetition : score / params.repetition;
  score -= params.frequency * float(count >> 1);
  return count > 1 ? score - params.presence : score;
}

METAL_FUNC float ruled(float score, uint rules, uint active) {
  if (rules & active & (rule_bad_word | rule_min_length | rule_min_new)) score = -INFINITY;
  if (active & rule_forced_bos) score = rules & rule_forced_bos ? 0.0f : -INFINITY;
  if (active & rule_forced_eos) score = rules & rule_forced_eos ? 0.0f : -INFINITY;
  return rules & active & (rule_suppressed | rule_begin_suppressed) ? -INFINITY : score;
}

} // namespace foundry
