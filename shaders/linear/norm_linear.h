// Host and GPU share this: arguments of norm_linear.metal.
#pragma once
#include "linear/linear.h"
#include "attention/rope_kv.h"

#define FC_NORM_LINEAR_NORM 0 // function constant: whether x passes a norm first

namespace foundry {

// Up to three matrices of one format, side by side, and the RMSNorm before them.
struct NormedArgs {
  uint32_t rows; // of x [rows, k], contiguous
  uint32_t k;
  uint32_t n[3];          // outputs of each matrix
  uint32_t row_blocks[3]; // blocks from a row of it to the next
  uint32_t has_bias;      // bit i: of matrix i; where 0, its buffer is not read
  uint32_t split;         // simdgroups that share K: a team
  float eps;
  float offset; // 1: the norm multiplies by 1 + its weight
};
static_assert(sizeof(NormedArgs) == 48, "shared with the host");

struct NormLinearArgs {
  NormedArgs normed;
  uint32_t first, end; // outputs that this launch makes: those of all matrices, or of some of them
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
