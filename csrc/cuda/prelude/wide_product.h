// Four products of 8x8 matrices as one of 16x16 and 16x8: what the tensor core has an instruction for, of which a
// single one leaves half unused. An overload of the shaders' own function (shaders/attention/matrix_pairs.h).
#pragma once
#include "simdgroup_matrix.h"

#if defined(MSL_PERMUTED) && __CUDA_ARCH__ >= 800
namespace metal {

#define MSL_WIDE_PRODUCT(T, name)                                                                                      \
  MSL_INLINE void multiply_accumulate_2x2(simdgroup_matrix<float, 8, 8>(&d)[2],                                        \
                                          const simdgroup_matrix<T, 8, 8>(&a)[2][2],                                   \
                                          const simdgroup_matrix<T, 8, 8>(&b)[2]) {                                    \
    MSL_MARK_MATRIX_PRODUCT;                                                                                           \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "          \
        "{%0,%1,%2,%3};"                                                                                               \
        : "+f"(d[0].elements.d[0]), "+f"(d[0].elements.d[1]), "+f"(d[1].elements.d[0]), "+f"(d[1].elements.d[1])       \
        : "r"(msl_::packed(a[0][0].elements)), "r"(msl_::packed(a[1][0].elements)),                                    \
          "r"(msl_::packed(a[0][1].elements)), "r"(msl_::packed(a[1][1].elements)),                                    \
          "r"(msl_::transposed(msl_::packed(b[0].elements))), "r"(msl_::transposed(msl_::packed(b[1].elements))));     \
  }
MSL_WIDE_PRODUCT(half, "f16")
MSL_WIDE_PRODUCT(bfloat, "bf16")
#undef MSL_WIDE_PRODUCT

} // namespace metal
#endif
