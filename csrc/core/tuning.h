// Which variant of a kernel runs: a table keyed by op, weight format, bucket of shapes and GPU family. Built-in entries
// (tuning_table.cpp), then what `torch-foundry tune` found on this machine, then overrides from the environment.
// A lookup is three loads and no string work.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include <c10/core/Device.h>

namespace foundry {

// linear with few rows. The order of a sum depends on `split` alone, and a shape has one for all numbers of rows: so
// rows get the same bits however many come together.
struct LinearChoice {
  uint16_t outputs;    // per team of simdgroups: a chunk of x serves that many rows of W
  uint16_t steps;      // of K in flight; packed codes: 1 is read while the one before is used, 0 when it is used
  uint16_t split;      // simdgroups that share K: a team
  uint16_t simdgroups; // per threadgroup
  uint16_t chains;     // of fma in a chunk: 1, the fewest instructions; 2, one too, of codes that are subnormal halves,
                       // and as 1 where a format or a device has none; 4, which a CPU makes vectors of
};

// The same products by matrices (matrix_rows.h), for a shape and any number of rows, as their bits must be the same.
struct MatricesChoice {
  uint16_t outputs; // per team, 16 or 32; 0: not by matrices
  uint16_t steps;   // of K in flight, with the one that is used
  uint16_t split;
  uint16_t simdgroups;
  uint16_t groups; // threadgroups at most
};

// Products of more rows with packed weights that have fragments (matrix_tile.h): linear_matrix_ahead, by how many
// eights of rows, and moe_matrix.
struct MatrixChoice {
  uint16_t outputs; // per team, 16 or 32; 0: linear_matrix, moe_linear
  uint16_t steps;   // of K in flight, with the one that is used
  uint16_t split;
  uint16_t simdgroups;
  uint16_t blocks; // of eight rows of x, in a threadgroup, at most
};

// attention with few queries, by dtype and head_dim.
struct AttentionChoice {
  uint16_t keys;       // per split (one threadgroup's) of the first 4096 keys; the first has twice as many
  uint16_t simdgroups; // per threadgroup
  uint16_t lanes;      // that read a key together: 1 or 8; 32: products of matrices, where there is such a kernel
  uint16_t far_keys;   // per split of the keys beyond
  uint16_t groups;     // threadgroups to aim at: rows share a reading of the keys as long as there are so many
  uint16_t rows;       // that share it, at most; of heads of more than 256 columns fewer, as sums lie in registers
};

// Rows of x up to which each way serves a product, where no other before it does: rows share readings of W, products of
// matrices of 16 bits with a packed W that isn't unpacked first, tensor operations on tiles of 16 bits, tiles. Modules
// ask torch beyond, for a W that is unpacked.
struct LinearRoutes {
  uint16_t rows;     // linear_rows; of ops themselves kFewRows at least, as their bits are those of a row alone
  uint16_t matrix;   // linear_matrix, linear_matrix_ahead
  uint16_t tiles;    // linear_tiles
  uint16_t backward; // linear_backward_input, of a packed W; experts' tiles, behind it, are Python's to choose
  uint16_t tensors;  // linear_tensors, before tiles; 0 where the device has none or is wrong
};

namespace tuning {

enum class Op {
  linear,
  attention,
  norm_linear,
  moe_glu,
  moe_down,
  linear_routes,
  matrices,
  norm_matrices,
  linear_matrix,
  moe_matrix
};
constexpr int kOps = 10;
constexpr bool for_any_rows(Op op) {
  return op == Op::linear_routes || op == Op::matrices || op == Op::norm_matrices || op == Op::moe_matrix;
}
constexpr bool of_experts(Op op) { return op == Op::moe_glu || op == Op::moe_down; } // which have a row each
using Choice = std::array<uint16_t, 6>; // the fields of a ..Choice in order

// Buckets of linear: rows 1, 2, 4, 8; n up to 2^8 .. 2^16 and more; k up to 2^9, 3 * 2^8, 2^10 .. 2^14 and more, as
// widths of today's models, 2560 and 4096, want different choices.
constexpr int kRowBuckets = 4, kOutputBuckets = 10, kInputBuckets = 12;
constexpr int kLinearBuckets = kRowBuckets * kOutputBuckets * kInputBuckets;
constexpr int kAttentionBuckets = 16; // head_dim 32, 64, .. 512

constexpr int log_bucket(int64_t size, int first, int count) { // ceil(log2(size)) - first, within the table
  const int bucket = static_cast<int>(std::bit_width(static_cast<uint64_t>(size > 0 ? size - 1 : 0))) - first;
  return bucket < 0 ? 0 : bucket < count ? bucket : count - 1;
}
constexpr int input_bucket(int64_t k) { // two for each power of two
  const int octave = log_bucket(k, 8, kInputBuckets);
  const bool lower = octave > 1 && 2 * k <= int64_t(3) << (octave + 7);
  const int bucket = 2 * octave - 2 - lower;
  return bucket < 0 ? 0 : bucket < kInputBuckets ? bucket : kInputBuckets - 1;
}
constexpr int64_t last_of_input_bucket(int bucket) { return int64_t(bucket % 2 ? 3 : 2) << (bucket / 2 + 8); }
constexpr int linear_bucket(int64_t rows, int64_t n, int64_t k) {
  const int row_bucket = log_bucket(rows, 0, kRowBuckets);
  return (row_bucket * kOutputBuckets + log_bucket(n, 8, kOutputBuckets)) * kInputBuckets + input_bucket(k);
}
constexpr int attention_bucket(int64_t head_dim) { return static_cast<int>((head_dim + 31) / 32) - 1; }

// The choice for a shape: of attention n is the head_dim. format: index of the weight's, of attention that of q, k and
// v. A KernelList that is filled notes what was asked.
Choice choose(c10::Device device, Op op, int format, int64_t rows, int64_t n, int64_t k);

} // namespace tuning

// `rows`: of x that share one reading of W (1, 2, 4 or 8).
inline LinearChoice choice_of(tuning::Op op, c10::Device device, int format, int rows, int64_t n, int64_t k) {
  const tuning::Choice c = tuning::choose(device, op, format, rows, n, k);
  return {c[0], c[1], c[2], c[3], c[4]};
}

inline LinearChoice linear_choice(c10::Device device, int format, int rows, int64_t n, int64_t k) {
  return choice_of(tuning::Op::linear, device, format, rows, n, k);
}

// The same for kernels that norm x on the way (norm_linear.metal): n outputs of all the matrices.
inline LinearChoice norm_linear_choice(c10::Device device, int format, int rows, int64_t n, int64_t k) {
  return choice_of(tuning::Op::norm_linear, device, format, rows, n, k);
}

inline MatricesChoice matrices_choice(bool norm, c10::Device device, int format, int64_t n, int64_t k) {
  const tuning::Op op = norm ? tuning::Op::norm_matrices : tuning::Op::matrices;
  const tuning::Choice c = tuning::choose(device, op, format, 1, n, k);
  return {c[0], c[1], c[2], c[3], c[4]};
}

inline MatrixChoice matrix_choice(c10::Device device, int format, int64_t rows, int64_t n, int64_t k) {
  const tuning::Choice c = tuning::choose(device, tuning::Op::linear_matrix, format, (rows + 7) / 8, n, k);
  return {c[0], c[1], c[2], c[3], c[4]};
}

inline MatrixChoice moe_matrix_choice(c10::Device device, int format, int64_t n, int64_t k) {
  const tuning::Choice c = tuning::choose(device, tuning::Op::moe_matrix, format, 1, n, k);
  return {c[0], c[1], c[2], c[3], c[4]};
}

// For the experts of a few tokens, a row each (moe.metal): n outputs of one expert's gate and up, or of its down.
inline LinearChoice moe_glu_choice(c10::Device device, int format, int64_t n, int64_t k) {
  return choice_of(tuning::Op::moe_glu, device, format, 1, n, k);
}

inline LinearChoice moe_down_choice(c10::Device device, int format, int64_t n, int64_t k) {
  return choice_of(tuning::Op::moe_down, device, format, 1, n, k);
}

// n outputs of k inputs, for any number of rows.
inline LinearRoutes linear_routes(c10::Device device, int format, int64_t n, int64_t k) {
  const tuning::Choice c = tuning::choose(device, tuning::Op::linear_routes, format, 1, n, k);
  return {c[0], c[1], c[2], c[3], c[5]};
}

inline AttentionChoice attention_choice(c10::Device device, int format, int64_t head_dim) {
  const tuning::Choice c = tuning::choose(device, tuning::Op::attention, format, 1, head_dim, 1);
  return {c[0], c[1], c[2], c[3], c[4], c[5]};
}

} // namespace foundry
