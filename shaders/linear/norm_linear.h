// Host and GPU share this: arguments of norm_linear.metal.
#pragma once
#include "linear/linear.h"
#include "attention/rope_kv.h"

#define FC_NORM_LINEAR_NORM 0 // function constant: whether x passes a norm first

namespace foundry {

FOUNDRY_CONST uint32_t norm_linear_matrices = 4; // side by side, at most

// Matrices of one format, side by side, and the RMSNorm before them.
struct NormedArgs {
  uint32_t rows; // of x [rows, k], contiguous
  uint32_t k;
  uint32_t n[norm_linear_matrices];          // outputs of each matrix
  uint32_t row_blocks[norm_linear_matrices]; // blocks from a row of it to the next
  uint32_t has_bias;                         // bit i: of matrix i; where 0, its buffer is not read
  uint32_t split;                            // simdgroups that share K: a team
  float eps;
  float offset; // 1: the norm multiplies by 1 + its weight
};
static_assert(sizeof(NormedArgs) == 56, "shared with the host");

struct NormLinearArgs {
  NormedArgs normed;
  uint32_t outputs;    // of all matrices
  uint32_t first, end; // that this launch makes: all, or those of some matrices
};

struct NormGluArgs {
  NormedArgs normed;
  uint32_t activation; // as in LinearArgs
  float gate_scale;    // of gates, before it
};

struct NormQkvArgs {
  NormedArgs normed;
  RopeKvArgs heads;
  uint32_t first_pair, end_pair; // that this launch makes: those of q, k and v, or of some of them
};

} // namespace foundry
