// The builtins of the host's compilers that the shared prelude uses, as NVRTC has them.
#pragma once

#define __builtin_acosf ::acosf
#define __builtin_acoshf ::acoshf
#define __builtin_asinf ::asinf
#define __builtin_asinhf ::asinhf
#define __builtin_atan2f ::atan2f
#define __builtin_atanf ::atanf
#define __builtin_atanhf ::atanhf
#define __builtin_ceilf ::ceilf
#define __builtin_copysignf ::copysignf
#define __builtin_cosf ::cosf
#define __builtin_coshf ::coshf
#define __builtin_exp2f ::exp2f
#define __builtin_expf ::expf
#define __builtin_fabs ::fabs
#define __builtin_fabsf ::fabsf
#define __builtin_floorf ::floorf
#define __builtin_fmaf ::fmaf
#define __builtin_fmodf ::fmodf
#define __builtin_frexpf ::frexpf
#define __builtin_ilogbf ::ilogbf
#define __builtin_ldexpf ::ldexpf
#define __builtin_log10f ::log10f
#define __builtin_log2f ::log2f
#define __builtin_logf ::logf
#define __builtin_memcpy ::memcpy
#define __builtin_nextafterf ::nextafterf
#define __builtin_pow ::pow
#define __builtin_powf ::powf
#define __builtin_rint ::rint
#define __builtin_rintf ::rintf
#define __builtin_roundf ::roundf
#define __builtin_sin ::sin
#define __builtin_sinf ::sinf
#define __builtin_sinhf ::sinhf
#define __builtin_sqrtf ::sqrtf
#define __builtin_tanf ::tanf
#define __builtin_tanhf ::tanhf
#define __builtin_truncf ::truncf

#define __builtin_inff() __builtin_bit_cast(float, 0x7f800000u)
#define __builtin_nanf(payload) __builtin_bit_cast(float, 0x7fc00000u)
#define __builtin_signbit(x) (__float_as_int(x) < 0)
#define __builtin_popcountll msl_::count_ones
#define __builtin_clzll msl_::leading_zeros
#define __builtin_ctzll msl_::trailing_zeros
#define __builtin_ctz msl_::trailing_zeros
#define __builtin_add_overflow msl_::add_overflow
#define __builtin_sub_overflow msl_::sub_overflow

namespace msl_ {

__forceinline__ constexpr int count_ones(unsigned long x) {
  if (!__builtin_is_constant_evaluated()) return __popcll(x);
  int count = 0;
  for (; x != 0; x &= x - 1) count++;
  return count;
}
__forceinline__ constexpr int leading_zeros(unsigned long x) {
  if (!__builtin_is_constant_evaluated()) return __clzll(static_cast<long long>(x));
  int count = 64;
  for (; x != 0; x >>= 1) count--;
  return count;
}
__forceinline__ constexpr int trailing_zeros(unsigned long x) {
  if (!__builtin_is_constant_evaluated()) return __ffsll(static_cast<long long>(x)) - 1;
  return count_ones((x & (~x + 1)) - 1);
}
__forceinline__ constexpr int trailing_zeros(unsigned int x) {
  if (!__builtin_is_constant_evaluated()) return __ffs(static_cast<int>(x)) - 1;
  return count_ones((x & (~x + 1)) - 1);
}
template <class T> __forceinline__ constexpr bool add_overflow(T x, T y, T* sum) {
  const __int128 exact = static_cast<__int128>(x) + y;
  *sum = static_cast<T>(exact);
  return *sum != exact;
}
template <class T> __forceinline__ constexpr bool sub_overflow(T x, T y, T* difference) {
  const __int128 exact = static_cast<__int128>(x) - y;
  *difference = static_cast<T>(exact);
  return *difference != exact;
}

} // namespace msl_
