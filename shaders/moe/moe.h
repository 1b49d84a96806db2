// Host and GPU share this: arguments and limits of moe.metal, routed experts of a mixture.
#pragma once
#include "linear/norm_linear.h"

namespace foundry {

FOUNDRY_CONST uint32_t moe_max_experts = 1024; // of which a threadgroup has memory for numbers of some simdgroups
FOUNDRY_CONST uint32_t moe_max_chosen = 32;    // a lane for each
FOUNDRY_CONST uint32_t moe_max_groups = 32;    // a lane for each
FOUNDRY_CONST uint32_t moe_tile_fields = 3;    // of a tile of pairs: expert, first pair, number of pairs

// ids and weights are [tokens, chosen + has_shared]; the last column is the shared expert's.
struct ChoiceArgs {
  uint32_t experts;
  uint32_t logits_stride; // from a token's logits to the next token's
  uint32_t shared_stride; // the same for a shared expert's
  uint32_t chosen;        // experts of a token
  uint32_t has_shared;    // one more column, with the id 0
  uint32_t normalize;     // the chosen experts' scores are divided by their sum
  uint32_t sigmoid;       // a score is the logistic function of a logit; 0: a softmax over all logits
  uint32_t by_logit;      // experts are compared by their logits; 0: by their scores; plus a correction in both cases
  uint32_t in_turn; // a score is a softmax over the logits that are left when an expert is chosen, and near its own
  uint32_t has_correction;
  uint32_t groups;     // of as many experts each, side by side
  uint32_t top_groups; // groups that a token's experts may be of: those whose best add up to most
  uint32_t group_best; // of a group's experts: its best one, or two
  float near;          // in_turn: such a logit is less by at most that times its size, or the chosen one's if larger
  float scale;         // of the chosen experts' weights
  float shared_weight; // of the column behind them; 0: the logistic function of one more logit
  float least_sum;     // added to the sum that scores are divided by, so that scores of 0 give weights of 0
};

// Experts' matrices W[experts, n, k] of one format, and which of them each token goes to. A pair is a token and one of
// its experts.
struct RoutedArgs {
  uint32_t experts;
  uint32_t has_shared;       // the last of a token's experts has matrices of its own
  uint32_t chosen;           // experts of a token
  uint32_t ids_stride;       // from a token's ids to the next token's
  uint32_t weights_stride;   // the same for routing weights
  uint32_t expert_blocks[2]; // blocks from an expert's matrix to the next expert's
};

// Biases of the experts' outputs: that of output n of an expert is bias[expert * of_expert + n * of_output].
struct ExpertBias {
  uint32_t given; // when 0, the buffer is not read
  uint32_t of_expert;
  uint32_t of_output;
};

struct MoeGluArgs {
  NormedArgs normed; // rows: tokens
  RoutedArgs routed;
  ExpertBias bias[2];  // of gate, of up
  uint32_t activation; // as in LinearArgs
};

struct MoeDownArgs {
  RoutedArgs routed;
  uint32_t n, k;
  uint32_t row_blocks;
  uint32_t split;        // simdgroups of a team
  uint32_t share;        // of those, how many share K of an expert: a power of two
  uint32_t has_residual; // when 0, the buffer is not read
  float scale;
  ExpertBias bias;
};

struct MoeGroupArgs {
  RoutedArgs routed;
  uint32_t pairs;
  uint32_t tiles; // that there is room for
};

struct MoeLinearArgs {
  RoutedArgs routed;
  uint32_t n, k;
  uint32_t row_blocks;
  uint32_t address; // of the weight, as far as a word goes
  uint32_t split;   // moe_matrix: simdgroups that share K
  uint32_t per_row; // pairs to which a row of x belongs
  ExpertBias bias;
  uint32_t activation; // as in LinearArgs
};

struct MoeCombineArgs {
  RoutedArgs routed;
  uint32_t n;
  uint32_t has_residual;
  float scale;
};

#ifdef __METAL_VERSION__
// What is added to output n of an expert.
template <typename T> METAL_FUNC float bias_of(constant ExpertBias& args, device const T* bias, ulong expert, uint n) {
  return args.given ? float(bias[expert * args.of_expert + n * args.of_output]) : 0.0f;
}
#endif

} // namespace foundry
