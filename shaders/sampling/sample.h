// Host and GPU share this: arguments, state and tuning of sample.metal.
#pragma once
#include "common/rows.h"

#define FC_SAMPLE_DRAW 0   // function constants: scores and masses are kept for a draw; otherwise the largest is
#define FC_SAMPLE_RULES 1  // single tokens are banned or forced
#define FC_SAMPLE_COUNTS 2 // penalties for tokens seen
#define FC_SAMPLE_BANS 3   // tokens that sample_bans has marked
#define FC_SAMPLE_PROBS 4  // the probabilities that are drawn from are written out

namespace foundry {

// A simdgroup takes one tile of a row: its largest score bounds what truncation can leave in it, its mass says whether
// a draw ends there. 152k tokens make 594 tiles.
FOUNDRY_CONST uint32_t sample_tile = 256;
FOUNDRY_CONST uint32_t sample_tiles_per_group = 8;
// Simdgroups of a row's draw, at most: threadgroups of 1024 threads of so long a kernel don't run on M1 and M2 unless
// its registers are spilled.
FOUNDRY_CONST uint32_t sample_draw_simdgroups = 16;
// Candidates that truncation compares with each other in threadgroup memory, 24 bytes each; more take the slow path.
FOUNDRY_CONST uint32_t sample_candidates = 1024;
// Masses are integers, exp(score - largest) * 2^40, so sums are exact in any order; 2^20 tokens can't overflow them.
FOUNDRY_CONST uint32_t sample_max_vocabulary = 1u << 20;

// What is left of a tile, or of any part of a row: `key` orders like its largest score; `value` is the lowest index of
// that score (greedy), or the bits of the float sum of exp(score - largest of the tile) (draw).
struct SamplePart {
  uint32_t key;
  uint32_t value;
};
static_assert(sizeof(SamplePart) == 8, "shared with the host");

// Bits of rules[token].
FOUNDRY_CONST uint32_t rule_eos = 1, rule_bad_word = 2, rule_min_length = 4, rule_min_new = 8, rule_forced_bos = 16,
                       rule_forced_eos = 32, rule_suppressed = 64, rule_begin_suppressed = 128;
// Bits of SampleParams::stages.
FOUNDRY_CONST uint32_t stage_top_k = 1, stage_top_p = 2, stage_min_p = 4, stage_forced_bos = 8, stage_greedy = 16;
FOUNDRY_CONST uint32_t stages_that_keep = stage_top_k | stage_top_p | stage_min_p;
// Bits of errors[row].
FOUNDRY_CONST uint32_t error_nan = 1, error_nothing = 2, error_infinite = 4;

// The tensor `params`: the settings as numbers, in device memory so that a graph can go on with others.
struct SampleParams {
  float repetition, presence, frequency, temperature;
  float min_p;
  uint32_t top_p; // in units of 2^-32
  uint32_t top_k;
  uint32_t stages;
  uint32_t top_p_keep, min_p_keep;
  int32_t min_length, min_new_length, forced_eos_length, begin_index;
  uint32_t ngram; // 0: off
  int32_t pad;
  uint32_t seed_low, seed_high;
};
static_assert(sizeof(SampleParams) == 18 * 4, "shared with the host");

struct SampleArgs {
  uint32_t n;        // tokens of the vocabulary
  uint32_t parts;    // per row
  uint32_t capacity; // columns of ids, which are contiguous
  Rows logits;
  uint32_t own_params; // 1: each row has its own, 0: one for all
  uint32_t own_rules;  // likewise
};
static_assert(sizeof(SampleArgs) == 40, "shared with the host");

#ifdef __METAL_VERSION__

// Floats as unsigned integers of the same order, -0 as 0; every NaN above everything else.
METAL_FUNC uint order_key(float x) {
  const uint bits = as_type<uint>(x == 0.0f ? 0.0f : x);
  const uint key = (bits & 0x80000000u) ? ~bits : (bits | 0x80000000u);
  return (bits & 0x7fffffffu) > 0x7f800000u ? 0xffffffffu : key;
}
METAL_FUNC float value_of_key(uint key) { return as_type<float>((key & 0x80000000u) ? key ^ 0x80000000u : ~key); }

FOUNDRY_CONST uint key_of_nothing = 0x007fffffu; // -infinity
FOUNDRY_CONST uint key_of_infinity = 0xff800000u;

// Why no token can be chosen from a row with this largest key; 0 if one can.
METAL_FUNC uint error_of(uint key, bool draw) {
  if (key == 0xffffffffu) return error_nan;
  if (key <= key_of_nothing) return error_nothing;
  return draw && key == key_of_infinity ? error_infinite : 0;
}

#endif

} // namespace foundry
