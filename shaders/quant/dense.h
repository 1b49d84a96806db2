// Dense weights are formats too: a block is one element. Kernels read them through the dense Loader (loader.h).
#pragma once
#include "format.h"

namespace foundry {

template <typename T> struct Dense {
  using block = T;
  FOUNDRY_CONST int block_size = 1;
  FOUNDRY_CONST int shared = 1;
  FOUNDRY_CONST bool has_codes = false;
  FOUNDRY_CONST int fragment_columns = 32; // of 16 bits

#ifdef __METAL_VERSION__
  template <typename X> struct Fragments {
    FOUNDRY_CONST int groups = 1;
    FOUNDRY_CONST bool has_scale = false, has_offset = false;
    metal::uint2 q[2];

    METAL_FUNC void read(threadgroup const uint32_t* row, uint, uint period, uint t) thread {
      for (short h = 0; h < 2; ++h) {
        const metal::uint2 raw = ((threadgroup const metal::uint2*)row)[period * 8 + h * 4 + t];
        q[h] = raw;
      }
    }
    METAL_FUNC void codes(int, int h, uint32_t, thread metal::vec<X, 2> (&w)[2]) const thread { pairs(q[h], w); }
    static METAL_FUNC void pairs(metal::uint2 x, thread metal::vec<X, 2> (&of)[2]) {
      for (short i = 0; i < 2; ++i) of[i] = as_type<metal::vec<X, 2>>(x[i]);
    }
    METAL_FUNC float scale(int) const thread { return 1.0f; }
    METAL_FUNC float offset(int) const thread { return 0.0f; }
  };
#endif
};

using F32 = Dense<float>;
using F16 = Dense<foundry_half>;
using BF16 = Dense<foundry_bfloat>;

FOUNDRY_FORMAT(F32, f32, 0)
FOUNDRY_FORMAT(F16, f16, 1)
FOUNDRY_FORMAT(BF16, bf16, 30)

} // namespace foundry
