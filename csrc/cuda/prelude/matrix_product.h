// The product of 8x8 matrices that lie spread over the lanes. 16-bit operands of one type go through the tensor core,
// of whose 16 rows half are zero. So do floats times 16 bits: TF32 has as many bits as halves, and two of them 22 bits
// of a float. All else is a chain of fused multiply-adds in order of k, as exact as the host's, or, where a kernel asks
// for no more than 22 bits (shaders/common/matrix_pairs.h), three products of TF32.
//
// Lane p holds row p / 4, columns p % 4 * 2 and the next: kernels that multiply matrices are compiled with
// MSL_PERMUTED.
#pragma once
#include "lanes.h"
#include "matrix_layout.h"

// The executor looks for this text: whether a kernel multiplies matrices, nobody says in advance.
#define MSL_MARK_MATRIX_PRODUCT asm volatile("// msl_matrix_product")

namespace msl_ {

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

// The upper 11 bits of a float, as TF32 keeps them.
MSL_INLINE uint32_t leading(float x) { return __float_as_uint(x) & 0xffffe000u; }

// One product of TF32; a lane has columns t and t + 4 of A there, which stand for 2 t and 2 t + 1.
MSL_INLINE Pair tf32_product(uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1, Pair c) {
  Pair d;
  float unused[2];
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
      : "=f"(d.x), "=f"(d.y), "=f"(unused[0]), "=f"(unused[1])
      : "r"(a0), "r"(0), "r"(a1), "r"(0), "r"(b0), "r"(b1), "f"(c.x), "f"(c.y), "f"(0.0f), "f"(0.0f));
  return d;
}

template <class B> MSL_INLINE Pair mixed_product(Pair a, uint32_t b, Pair c) {
  B low, high;
  low.bits = static_cast<uint16_t>(b);
  high.bits = static_cast<uint16_t>(b >> 16);
  const uint32_t b0 = __float_as_uint(static_cast<float>(low)), b1 = __float_as_uint(static_cast<float>(high));
  const uint32_t x = leading(a.x), y = leading(a.y);
  const float x_rest = a.x - __uint_as_float(x), y_rest = a.y - __uint_as_float(y);
  c = tf32_product(leading(x_rest), leading(y_rest), b0, b1, c);
  return tf32_product(x, y, b0, b1, c);
}

// A float as the nearest TF32 and what is left.
struct Split {
  uint32_t most, rest;
};
MSL_INLINE Split split_float(float x) {
  const uint32_t most = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  return {most, leading(x - __uint_as_float(most))};
}

// c[i] + a[i] * b: of the tensor core's 16 rows, eight are those of each.
MSL_INLINE void float_products(const Pair (&a)[2], Pair b, Pair (&c)[2]) {
  const uint32_t x = __float_as_uint(b.x), y = __float_as_uint(b.y);
  const uint32_t upper = transposed(__byte_perm(x, y, 0x7632)), lower = transposed(__byte_perm(x, y, 0x5410));
  const Split b0 = split_float(__uint_as_float(__byte_perm(lower, upper, 0x5410)));
  const Split b1 = split_float(__uint_as_float(__byte_perm(lower, upper, 0x7632)));
  const Split left[2][2] = {{split_float(a[0].x), split_float(a[0].y)}, {split_float(a[1].x), split_float(a[1].y)}};
  float sum[4] = {}; // a tensor core cuts sums off: to c they are added by lanes, which round
  const auto add = [&](uint32_t Split::* of_a, uint32_t Split::* of_b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(left[0][0].*of_a), "r"(left[1][0].*of_a), "r"(left[0][1].*of_a), "r"(left[1][1].*of_a), "r"(b0.*of_b),
          "r"(b1.*of_b));
  };
  add(&Split::rest, &Split::most);
  add(&Split::most, &Split::rest);
  add(&Split::most, &Split::most);
  for (int i = 0; i < 2; i++) c[i] = {c[i].x + sum[2 * i], c[i].y + sum[2 * i + 1]};
}

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
  else if constexpr (__CUDA_ARCH__ >= 800 && std::is_same_v<A, float> && !std::is_same_v<B, float>)
    return mixed_product<B>(to_pair(a), transposed(packed(b)), c);
  else
    return fused_product(to_pair(a), to_pair(b), c);
#else
  __trap();
#endif
}

} // namespace msl_
