// Host and GPU share this: arguments and tuning of linear.metal.
#pragma once
#include "common/rows.h"

namespace foundry {

// Tile kernel: BM tokens x BN outputs by 2 x 2 simdgroups, K in slabs of BK. Two f32 slabs fill 13.5 KiB, so two
// threadgroups fit a core; 2 x 4 accumulators a simdgroup keep the matrix unit busy.
FOUNDRY_CONST uint32_t linear_bm = 32;
FOUNDRY_CONST uint32_t linear_bn = 64;
FOUNDRY_CONST uint32_t linear_bk = 32;
FOUNDRY_CONST uint32_t linear_tile_threads = 128;
FOUNDRY_CONST uint32_t linear_run_slabs = 4; // that are summed in one chain

// Tensor kernel: its tiles, by simdgroups that make a product together.
FOUNDRY_CONST uint32_t linear_tensors_bm = 64;
FOUNDRY_CONST uint32_t linear_tensors_bn = 64;
FOUNDRY_CONST uint32_t linear_tensors_bk = 32;
FOUNDRY_CONST uint32_t linear_tensors_simdgroups = 4;

// Matrix kernel: outputs of a threadgroup, whose simdgroups share K.
FOUNDRY_CONST uint32_t linear_matrix_outputs = 16;
FOUNDRY_CONST uint32_t linear_matrix_split = 8;

// Rows of x and of W as matrices (matrix_rows.h): columns of K of a step, whose bytes lie in threadgroup memory so that
// the rows of a product begin in banks of their own.
FOUNDRY_CONST int by_matrices = 0;   // CHAINS of kernels that multiply so
FOUNDRY_CONST int by_subnormals = 2; // of those with one chain, of codes that are subnormal halves (gemv.h)
FOUNDRY_CONST uint32_t matrix_rows = 8;
constexpr uint32_t matrix_step(uint32_t block_size) { return block_size > 1 ? 256 : 128; }
constexpr uint32_t matrix_x_stride(uint32_t block_size) { return matrix_step(block_size) * 2 + 32; }
constexpr uint32_t matrix_stride(uint32_t block_size, uint32_t bytes) {
  return block_size > 1 ? (bytes + 15) / 32 * 32 + 16 : bytes + 32;
}
// Bytes of a step of a team's outputs and, unless all of it lies elsewhere, of x.
constexpr uint32_t matrix_stage(uint32_t outputs, uint32_t block_size, uint32_t bytes, bool whole) {
  return outputs * matrix_stride(block_size, bytes) + (whole ? 0 : matrix_rows * matrix_x_stride(block_size));
}
constexpr uint32_t matrix_sums_stride(uint32_t outputs) { return outputs + 4; } // rows some banks apart
// Bytes of a threadgroup of linear_matrix_ahead: where rows begin, then steps or, afterwards, sums.
constexpr uint32_t matrix_tile_bytes(uint32_t rows, uint32_t outputs, uint32_t steps, uint32_t split,
                                     uint32_t simdgroups, uint32_t block_size, uint32_t bytes) {
  const uint32_t x = split * steps * rows * matrix_x_stride(block_size);
  const uint32_t staged = x + simdgroups * steps * outputs * matrix_stride(block_size, bytes);
  const uint32_t sums = simdgroups * rows * matrix_sums_stride(outputs) * 4;
  return rows * 4 + (staged > sums ? staged : sums);
}
constexpr uint32_t matrix_whole_stride(uint32_t k) { return k * 2 + 32; } // of rows of 16 bits, all of which are there

// LinearArgs::activation
FOUNDRY_CONST uint32_t activation_none = 0;
FOUNDRY_CONST uint32_t activation_silu = 1;
FOUNDRY_CONST uint32_t activation_gelu_tanh = 2;
FOUNDRY_CONST uint32_t activation_gelu = 3;
FOUNDRY_CONST uint32_t activation_sigmoid = 4;
FOUNDRY_CONST uint32_t activation_clamped_swiglu = 5; // of a gate and up together
FOUNDRY_CONST uint32_t activation_relu2 = 6;
FOUNDRY_CONST uint32_t activation_softplus = 7;
FOUNDRY_CONST uint32_t activation_relu = 8;

// y[m, n] = residual[m, n] + scale * activation(sum_k x[m, k] W[n, k] + bias[n]). The epilogue is chosen at run time by
// uniform branches: as function constants its 16 forms would each be a compiled variant.
struct LinearArgs {
  uint32_t rows;       // M
  uint32_t n;          // outputs
  uint32_t k;          // inputs
  uint32_t row_blocks; // blocks in a row of W
  uint32_t split;      // rows and matrix kernels: simdgroups that share K
  uint32_t activation;
  uint32_t has_bias; // when 0, the buffer is not read
  uint32_t has_residual;
  float scale;
  Rows x;
  Rows residual;
};
static_assert(sizeof(LinearArgs) == 76, "shared with the host");

// Sums that a simdgroup of m rows and n outputs gathers behind a norm: the products, m sums of squares, and padding.
constexpr int normed_sums(int m, int n) { return (m * n + m + 3) / 4 * 4; }

} // namespace foundry
