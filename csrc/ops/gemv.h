// What ops that multiply few rows of x have in common: shaders/linear/gemv.h.
#pragma once

#include <algorithm>

#include "core/launch.h"
#include "core/tuning.h"
#include "ops/limits.h"

namespace foundry {

// Of a kernel that so many rows go through: those that share one reading of the weight. More than eight read it again.
inline int rows_together(int64_t rows) { return rows > 4 ? kRowsTogether : rows > 2 ? 4 : static_cast<int>(rows); }

struct Gemv {
  LinearChoice choice;
  int width;    // V of gemv.h
  int rows = 1; // of x that share a reading of the weight

  static int width_of(bool aligned, bool words) { return !aligned ? 1 : words ? 16 : 8; }

  // The end of the kernels' template arguments.
  KernelKey name(KernelKey key) const { return key.add({width, choice.outputs, choice.steps, choice.chains}); }

  // A team of simdgroups for `each` of `units`; `sums`: floats of threadgroup memory that a simdgroup needs.
  void run(Launch& launch, int64_t units, int each, int64_t batch, size_t sums) const {
    launch.tgmem(std::max<size_t>(choice.simdgroups * sums, 1) * sizeof(float)); // no length 0 in Metal
    launch.run(teams(units, each, choice.split, choice.simdgroups, batch));
  }
};

} // namespace foundry
