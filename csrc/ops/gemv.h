// What ops that multiply few rows of x have in common: shaders/linear/gemv.h and matrix_rows.h.
#pragma once

#include <algorithm>
#include <optional>

#include "core/launch.h"
#include "core/quant_table.h"
#include "core/tuning.h"
#include "linear/linear.h"
#include "ops/limits.h"

namespace foundry {

// Of a kernel that so many rows go through: those that share one reading of the weight. More than eight read it again.
inline int rows_together(int64_t rows) { return rows > 4 ? kRowsTogether : rows > 2 ? 4 : static_cast<int>(rows); }

struct Gemv {
  LinearChoice choice;
  int width;           // V of gemv.h
  int rows = 1;        // of x that share a reading of the weight
  size_t memory = 0;   // by matrices: bytes of a threadgroup
  uint32_t groups = 0; // and how many threadgroups there are at most, which make all outputs in turn

  static int width_of(bool aligned, bool words) { return !aligned ? 1 : words ? 16 : 8; }

  // The end of the kernels' template arguments.
  KernelKey name(KernelKey key) const { return key.add({width, choice.outputs, choice.steps, choice.chains}); }

  // A team of simdgroups for `each` of `units`; `sums`: floats of threadgroup memory that a simdgroup needs.
  void run(Launch& launch, int64_t units, int each, int64_t batch, size_t sums) const {
    Grid grid = teams(units, each, choice.split, choice.simdgroups, batch);
    if (choice.chains == by_matrices) {
      launch.tgmem(memory);
      grid.size[0] = std::min(grid.size[0], groups);
    } else {
      launch.tgmem(std::max<size_t>(choice.simdgroups * sums, 1) * sizeof(float)); // no length 0 in Metal
    }
    launch.run(grid);
  }
};

// Bytes of a step of K of a row of W in threadgroup memory.
inline uint32_t step_bytes(const QuantFormat& format) {
  const uint32_t block = u32(format.block_size);
  return matrix_step(block) / block * u32(format.block_bytes);
}

// Whether the elements of x and the columns of W are those of fragments.
inline bool has_fragments(const at::Tensor& x, const WeightMatrix& w) {
  return w.format.fragment_columns && x.element_size() == 2 && w.k % w.format.fragment_columns == 0;
}

// Whether rows of x and of these weights, side by side, can be read as fragments of matrices (quant/format.h): the
// width of the reads of W in bytes, 16 or 8, or 0.
inline int fragment_width(const at::Tensor& x, c10::ArrayRef<WeightMatrix> matrices, at::TensorList weights) {
  const QuantFormat& format = matrices[0].format;
  if (!has_fragments(x, matrices[0])) return 0;
  if (!format.packed() && weights[0].scalar_type() != x.scalar_type()) return 0;
  int64_t bits = step_bytes(format); // of all that must be a multiple
  for (size_t i = 0; i < matrices.size(); i++) {
    bits |= reinterpret_cast<int64_t>(weights[i].const_data_ptr()) | weights[i].size(1) * weights[i].itemsize();
    if (matrices[i].n > 1) bits |= weights[i].stride(0) * weights[i].itemsize();
  }
  return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : 0;
}

// The product of rows of x with `weights`, side by side, by matrices, for any number of rows: all of them or none, for
// their bits. None where the table doesn't say so, or where the types and how the rows of W lie don't allow it.
// aligned: whether the `m` rows of x, and the norm's weight, begin at multiples of 16 bytes.
inline std::optional<Gemv> multiplied_as_matrices(bool norm, const at::Tensor& x, int64_t m,
                                                  c10::ArrayRef<WeightMatrix> matrices, at::TensorList weights,
                                                  bool aligned) {
  const int width = fragment_width(x, matrices, weights);
  if (!width) return {};
  const QuantFormat& format = matrices[0].format;
  const int64_t k = matrices[0].k;
  int64_t n = 0;
  for (const WeightMatrix& w : matrices) n += w.n;
  const MatricesChoice c = matrices_choice(norm, x.device(), format.index, n, k);
  if (!c.outputs) return {};
  Gemv gemv{
      {c.outputs, c.steps, c.split, c.simdgroups, by_matrices}, Gemv::width_of(aligned, width == 16), kRowsTogether};
  gemv.groups = c.groups;
  gemv.memory = c.simdgroups * (matrix_rows * (1 + 2 * c.outputs) * sizeof(float) +
                                c.steps * matrix_stage(c.outputs, u32(format.block_size), step_bytes(format), norm));
  if (norm) gemv.memory += std::min<int64_t>(m, matrix_rows) * matrix_whole_stride(u32(k));
  return gemv;
}

} // namespace foundry
