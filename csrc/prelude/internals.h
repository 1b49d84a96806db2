// fast:: and precise::, and internals of Apple's headers that libraries call.
#pragma once
#include "atomic.h"
#include "math_names.h"
#include "simdgroup_matrix.h"

namespace msl_ {
template <class T> MSL_INLINE decltype(auto) as_float(const T& x) {
  if constexpr (is_number<T> || is_float16<T>::value)
    return static_cast<float>(x);
  else
    return (x);
}
} // namespace msl_

namespace metal {

// Declarations rather than a directive, so that shaders may add overloads in these namespaces. Of a half, a bfloat or
// an integer the functions are those of float: `precise::exp(x)` of a half isn't rounded to one.
#define MSL_OF_FLOAT(name)                                                                                             \
  template <class... A> MSL_INLINE auto name(const A&... a) { return metal::name(msl_::as_float(a)...); }
namespace fast {
MSL_OTHER_NAMES(MSL_USE)
MSL_FLOAT_NAMES(MSL_OF_FLOAT)
} // namespace fast
namespace precise {
MSL_OTHER_NAMES(MSL_USE)
MSL_FLOAT_NAMES(MSL_OF_FLOAT)
} // namespace precise
#undef MSL_OF_FLOAT

// The last argument of Apple's builtins tells fast from precise.
#define MSL_INTERNAL_1(name)                                                                                           \
  template <class T> MSL_INLINE T __metal_##name(T x, int = 0) { return name(x); }
#define MSL_INTERNAL_2(name)                                                                                           \
  template <class T> MSL_INLINE T __metal_##name(T x, T y, int = 0) { return name(x, y); }
#define MSL_INTERNAL_3(name)                                                                                           \
  template <class T> MSL_INLINE T __metal_##name(T x, T y, T z, int = 0) { return name(x, y, z); }
MSL_INTERNAL_1(fabs)
MSL_INTERNAL_1(acos)
MSL_INTERNAL_1(acosh)
MSL_INTERNAL_1(asin)
MSL_INTERNAL_1(asinh)
MSL_INTERNAL_1(atan)
MSL_INTERNAL_1(atanh)
MSL_INTERNAL_1(ceil)
MSL_INTERNAL_1(cos)
MSL_INTERNAL_1(cosh)
MSL_INTERNAL_1(cospi)
MSL_INTERNAL_1(exp)
MSL_INTERNAL_1(exp10)
MSL_INTERNAL_1(exp2)
MSL_INTERNAL_1(floor)
MSL_INTERNAL_1(fract)
MSL_INTERNAL_1(log)
MSL_INTERNAL_1(log10)
MSL_INTERNAL_1(log2)
MSL_INTERNAL_1(rint)
MSL_INTERNAL_1(round)
MSL_INTERNAL_1(rsqrt)
MSL_INTERNAL_1(sign)
MSL_INTERNAL_1(sin)
MSL_INTERNAL_1(sinh)
MSL_INTERNAL_1(sinpi)
MSL_INTERNAL_1(sqrt)
MSL_INTERNAL_1(tan)
MSL_INTERNAL_1(tanh)
MSL_INTERNAL_1(tanpi)
MSL_INTERNAL_1(trunc)
MSL_INTERNAL_2(atan2)
MSL_INTERNAL_2(copysign)
MSL_INTERNAL_2(divide)
MSL_INTERNAL_2(fdim)
MSL_INTERNAL_2(fmax)
MSL_INTERNAL_2(fmin)
MSL_INTERNAL_2(fmod)
MSL_INTERNAL_2(nextafter)
MSL_INTERNAL_2(pow)
MSL_INTERNAL_2(powr)
MSL_INTERNAL_3(fma)
MSL_INTERNAL_3(fmax3)
MSL_INTERNAL_3(fmedian3)
MSL_INTERNAL_3(fmin3)
#undef MSL_INTERNAL_1
#undef MSL_INTERNAL_2
#undef MSL_INTERNAL_3
template <class T> MSL_INLINE T __metal_ldexp(T x, int e, int = 0) { return ldexp(x, e); }
template <class T> MSL_INLINE T __metal_frexp(T x, int* e, int = 0) { return frexp(x, *e); }
template <class T> MSL_INLINE T __metal_modf(T x, T* whole, int = 0) { return modf(x, *whole); }

#define MSL_INTERNAL_SIMD(name)                                                                                        \
  template <class T> MSL_INLINE T __metal_simd_##name(T x, MSL_LINE) { return simd_##name(x, line); }                  \
  template <class T> MSL_INLINE T __metal_quad_##name(T x, MSL_LINE) { return quad_##name(x, line); }
MSL_INTERNAL_SIMD(sum)
MSL_INTERNAL_SIMD(product)
MSL_INTERNAL_SIMD(max)
MSL_INTERNAL_SIMD(min)
MSL_INTERNAL_SIMD(and)
MSL_INTERNAL_SIMD(or)
MSL_INTERNAL_SIMD(xor)
MSL_INTERNAL_SIMD(prefix_inclusive_sum)
MSL_INTERNAL_SIMD(prefix_exclusive_sum)
MSL_INTERNAL_SIMD(prefix_inclusive_product)
MSL_INTERNAL_SIMD(prefix_exclusive_product)
MSL_INTERNAL_SIMD(broadcast_first)
#undef MSL_INTERNAL_SIMD
#define MSL_INTERNAL_SHUFFLE(name)                                                                                     \
  template <class T> MSL_INLINE T __metal_simd_##name(T x, ushort y, MSL_LINE) { return simd_##name(x, y, line); }     \
  template <class T> MSL_INLINE T __metal_quad_##name(T x, ushort y, MSL_LINE) { return quad_##name(x, y, line); }
MSL_INTERNAL_SHUFFLE(broadcast)
MSL_INTERNAL_SHUFFLE(shuffle)
MSL_INTERNAL_SHUFFLE(shuffle_down)
MSL_INTERNAL_SHUFFLE(shuffle_rotate_down)
MSL_INTERNAL_SHUFFLE(shuffle_rotate_up)
MSL_INTERNAL_SHUFFLE(shuffle_up)
MSL_INTERNAL_SHUFFLE(shuffle_xor)
#undef MSL_INTERNAL_SHUFFLE
#define MSL_INTERNAL_FILL(name)                                                                                        \
  template <class T> MSL_INLINE T __metal_##name(T x, T fill, ushort delta, ushort modulo, MSL_LINE) {                 \
    return name(x, fill, delta, modulo, line);                                                                         \
  }
MSL_INTERNAL_FILL(simd_shuffle_and_fill_down)
MSL_INTERNAL_FILL(simd_shuffle_and_fill_up)
MSL_INTERNAL_FILL(quad_shuffle_and_fill_down)
MSL_INTERNAL_FILL(quad_shuffle_and_fill_up)
#undef MSL_INTERNAL_FILL
MSL_INLINE ushort __metal_get_simdgroup_size(ushort) { return msl_::kLanes; }
MSL_INLINE ushort __metal_get_thread_index_in_simdgroup(ushort) { return static_cast<ushort>(msl_::own_lane()); }

// Logging goes nowhere.
struct os_log {
  constexpr os_log(const char* = "", const char* = "") {}
  template <class... A> MSL_INLINE void log(A...) const {}
  template <class... A> MSL_INLINE void log_debug(A...) const {}
  template <class... A> MSL_INLINE void log_info(A...) const {}
  template <class... A> MSL_INLINE void log_error(A...) const {}
  template <class... A> MSL_INLINE void log_fault(A...) const {}
};
constexpr os_log os_log_default;

} // namespace metal

#undef MSL_LINE

// <simd/simd.h>, for headers shared between host and shader.
namespace simd {
using namespace metal;
}
