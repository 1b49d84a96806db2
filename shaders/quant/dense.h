// Dense weights are formats too: a block is one element. Kernels read them through the dense Loader (loader.h).
#pragma once
#include "format.h"

namespace foundry {

template <typename T> struct Dense {
  using block = T;
  FOUNDRY_CONST int block_size = 1;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = false;
};

using F32 = Dense<float>;
using F16 = Dense<foundry_half>;
using BF16 = Dense<foundry_bfloat>;

FOUNDRY_FORMAT(F32, f32, 0)
FOUNDRY_FORMAT(F16, f16, 1)
FOUNDRY_FORMAT(BF16, bf16, 30)

} // namespace foundry
