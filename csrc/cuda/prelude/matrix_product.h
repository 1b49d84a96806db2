// The product of 8x8 matrices that lie spread over the lanes. 16-bit operands of one type go through the tensor core,
// of whose 16 rows half are zero; all else is a chain of fused multiply-adds in order of k, as exact as the host's.
//
// Lane p holds row p / 4, columns p % 4 * 2 and the next: kernels that multiply matrices are compiled with
// MSL_PERMUTED.
#pragma once
#include "lanes.h"
#include "matrix_layout.h"

// The executor looks for this text: whether a kernel multiplies matrices, nobody says in advance.
#define MSL_MARK_MATRIX_PRODUCT asm volatile("// msl_matrix_product")

namespace msl {

template <class T> MSL_INLINE uint32_t packed(const metal::vec<T, 2>& v) {
  return static_cast<uint32_t>(v.d[0].bits) | static_cast<uint32_t>(v.d[1].bits) << 16;
}

// B lies in the tensor core transposed.
MSL_INLINE uint32_t transposed(uint32_t fragment) {
  uint32_t result;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(result) : "r"(fragment));
  return result;
}

#define MSL_TENSOR_PRODUCT(T, name)                                                                                    \
  MSL_INLINE Pair tensor_product(uint32_t a, uint32_t b, Pair c, T) {                                                  \
    Pair d;                                                                                                            \
    float unused[2];                                                                                                   \
    asm("mma.sync.aligned.m16n8k8.row.col.f32." name "." name ".f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"     \
        : "=f"(d.x), "=f"(d.y), "=f"(unused[0]), "=f"(unused[1])                                                       \
        : "r"(a), "r"(0), "r"(b), "f"(c.x), "f"(c.y), "f"(0.0f), "f"(0.0f));                                           \
    return d;                                                                                                          \
  }
MSL_TENSOR_PRODUCT(half, "f16")
MSL_TENSOR_PRODUCT(bfloat, "bf16")
#undef MSL_TENSOR_PRODUCT

MSL_INLINE Pair fused_product(Pair a, Pair b, Pair c) {
  const uint32_t lane = own_hardware_lane(), row = lane & ~3u, columns = lane & 3;
  for (uint32_t k = 0; k < 8; k++) {
    const float left = fetch(k % 2 == 0 ? a.x : a.y, row + k / 2);
    const Pair right = fetch(b, k * 4 + columns);
    c.x = ::fmaf(left, right.x, c.x);
    c.y = ::fmaf(left, right.y, c.y);
  }
  return c;
}

template <class A, class B>
MSL_INLINE Pair multiply_accumulate(const metal::vec<A, 2>& a, const metal::vec<B, 2>& b, Pair c, int) {
  MSL_MARK_MATRIX_PRODUCT;
#if defined(MSL_PERMUTED)
  if constexpr (__CUDA_ARCH__ >= 800 && std::is_same_v<A, B> && !std::is_same_v<A, float>)
    return tensor_product(packed(a), transposed(packed(b)), c, A());
  else
    return fused_product(to_pair(a), to_pair(b), c);
#else
  __trap();
#endif
}

} // namespace msl
