// Four products of 8x8 matrices as one of 16x16 and 16x8: what the tensor core has an instruction for, of which a
// single one leaves half unused. Overloads of the shaders' own functions (shaders/common/matrix_pairs.h).
#pragma once
#include "simdgroup_matrix.h"

#if defined(MSL_PERMUTED) && __CUDA_ARCH__ >= 800
namespace msl_ {

#define MSL_WIDE_PRODUCT(T, name)                                                                                      \
  MSL_INLINE void wide_product(metal::simdgroup_matrix<float, 8, 8>(&d)[2],                                            \
                               const metal::simdgroup_matrix<T, 8, 8>(&a)[2][2], uint32_t b0, uint32_t b1) {           \
    MSL_MARK_MATRIX_PRODUCT;                                                                                           \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "          \
        "{%0,%1,%2,%3};"                                                                                               \
        : "+f"(d[0].elements.d[0]), "+f"(d[0].elements.d[1]), "+f"(d[1].elements.d[0]), "+f"(d[1].elements.d[1])       \
        : "r"(packed(a[0][0].elements)), "r"(packed(a[1][0].elements)), "r"(packed(a[0][1].elements)),                 \
          "r"(packed(a[1][1].elements)), "r"(b0), "r"(b1));                                                            \
  }
MSL_WIDE_PRODUCT(half, "f16")
MSL_WIDE_PRODUCT(bfloat, "bf16")
#undef MSL_WIDE_PRODUCT

} // namespace msl_
namespace metal {

#define MSL_WIDE_PRODUCT(T)                                                                                            \
  MSL_INLINE void multiply_accumulate_2x2(simdgroup_matrix<float, 8, 8>(&d)[2],                                        \
                                          const simdgroup_matrix<T, 8, 8>(&a)[2][2],                                   \
                                          const simdgroup_matrix<T, 8, 8>(&b)[2]) {                                    \
    msl_::wide_product(d, a, msl_::transposed(msl_::packed(b[0].elements)),                                            \
                       msl_::transposed(msl_::packed(b[1].elements)));                                                 \
  }                                                                                                                    \
  MSL_INLINE void multiply_accumulate_2x2_transposed(simdgroup_matrix<float, 8, 8>(&d)[2],                             \
                                                     const simdgroup_matrix<T, 8, 8>(&a)[2][2],                        \
                                                     simdgroup_matrix<T, 8, 8>(&b)[2], uint32_t) {                     \
    msl_::wide_product(d, a, msl_::packed(b[0].elements), msl_::packed(b[1].elements)); /* as it lies there */         \
  }
MSL_WIDE_PRODUCT(half)
MSL_WIDE_PRODUCT(bfloat)
#undef MSL_WIDE_PRODUCT

MSL_INLINE void multiply_accumulate_near_2x1(simdgroup_matrix<float, 8, 8> (&d)[2],
                                             const simdgroup_matrix<float, 8, 8> (&a)[2],
                                             const simdgroup_matrix<float, 8, 8>& b) {
  MSL_MARK_MATRIX_PRODUCT;
  msl_::Pair sums[2] = {msl_::to_pair(d[0].elements), msl_::to_pair(d[1].elements)};
  msl_::float_products({msl_::to_pair(a[0].elements), msl_::to_pair(a[1].elements)}, msl_::to_pair(b.elements), sums);
  for (int i = 0; i < 2; i++) d[i].elements = vec<float, 2>(sums[i].x, sums[i].y);
}
MSL_INLINE void multiply_accumulate_near(simdgroup_matrix<float, 8, 8>& d, const simdgroup_matrix<float, 8, 8>& a,
                                         const simdgroup_matrix<float, 8, 8>& b) {
  simdgroup_matrix<float, 8, 8> both[2] = {d, d};
  multiply_accumulate_near_2x1(both, {a, simdgroup_matrix<float, 8, 8>(0.0f)}, b);
  d = both[0];
}

} // namespace metal
#endif
