// <metal_math> and <metal_common>: floating point, scalar and vector. Results are libm's, correct to about an ulp: the
// larger errors that Apple allows fast math do not show here, and fast:: and precise:: are the same functions.
#pragma once
#include "lift.h"

namespace msl_ {
// A bfloat's functions are float's, as Apple's headers have none of its own: templates that take nothing else, as
// libraries bring theirs, which must win.
template <class B> using if_bfloat = std::enable_if_t<std::is_same_v<B, bfloat>>;
} // namespace msl_

namespace metal {

// half computes in float and rounds once.
#define MSL_MATH_1(name, expression)                                                                                   \
  MSL_INLINE float name(float x) { return expression; }                                                                \
  MSL_INLINE half name(half value) {                                                                                   \
    const float x = static_cast<float>(value);                                                                         \
    return half(expression);                                                                                           \
  }                                                                                                                    \
  template <class B, class = msl_::if_bfloat<B>> MSL_INLINE float name(B value) {                                      \
    const float x = value;                                                                                             \
    return expression;                                                                                                 \
  }                                                                                                                    \
  MSL_LIFT_1(name)
#define MSL_SCALAR_2(name, expression)                                                                                 \
  MSL_INLINE float name(float x, float y) { return expression; }                                                       \
  MSL_INLINE half name(half a, half b) {                                                                               \
    const float x = static_cast<float>(a), y = static_cast<float>(b);                                                  \
    return half(expression);                                                                                           \
  }                                                                                                                    \
  template <class B, class = msl_::if_bfloat<B>> MSL_INLINE float name(B a, B b) {                                     \
    const float x = a, y = b;                                                                                          \
    return expression;                                                                                                 \
  }
#define MSL_MATH_2(name, expression)                                                                                   \
  MSL_SCALAR_2(name, expression)                                                                                       \
  MSL_LIFT_2(name)
#define MSL_SCALAR_3(name, expression)                                                                                 \
  MSL_INLINE float name(float x, float y, float z) { return expression; }                                              \
  MSL_INLINE half name(half a, half b, half c) {                                                                       \
    const float x = static_cast<float>(a), y = static_cast<float>(b), z = static_cast<float>(c);                       \
    return half(expression);                                                                                           \
  }                                                                                                                    \
  template <class B, class = msl_::if_bfloat<B>> MSL_INLINE float name(B a, B b, B c) {                                \
    const float x = a, y = b, z = c;                                                                                   \
    return expression;                                                                                                 \
  }
#define MSL_MATH_3(name, expression)                                                                                   \
  MSL_SCALAR_3(name, expression)                                                                                       \
  MSL_LIFT_3(name)

} // namespace metal

namespace msl_ {
// Without a call to fminf: a NaN yields to the other operand.
MSL_INLINE float least(float x, float y) { return y < x || x != x ? y : x; }
MSL_INLINE float most(float x, float y) { return x < y || x != x ? y : x; }
MSL_INLINE float clamp_unit(float x) { return least(most(x, 0.0f), 1.0f); }
constexpr double kPi = 3.14159265358979323846;
// Sine and cosine of x half turns, reduced before it is scaled: exact where they are 0, 1 or -1.
MSL_INLINE double sine_of_turns(double x) {
  x -= 2.0 * __builtin_rint(x * 0.5);
  if (x > 0.5) x = 1.0 - x;
  if (x < -0.5) x = -1.0 - x;
  return __builtin_sin(kPi * x);
}
MSL_INLINE double cosine_of_turns(double x) {
  x -= 2.0 * __builtin_rint(x * 0.5);
  return sine_of_turns(0.5 - __builtin_fabs(x));
}
MSL_INLINE float ramp(float low, float high, float x) {
  const float t = clamp_unit((x - low) / (high - low));
  return t * t * (3.0f - 2.0f * t);
}
MSL_INLINE float median(float x, float y, float z) { return most(least(x, y), least(most(x, y), z)); }
} // namespace msl_

namespace metal {

MSL_MATH_1(acos, __builtin_acosf(x))
MSL_MATH_1(acosh, __builtin_acoshf(x))
MSL_MATH_1(asin, __builtin_asinf(x))
MSL_MATH_1(asinh, __builtin_asinhf(x))
MSL_MATH_1(atan, __builtin_atanf(x))
MSL_MATH_1(atanh, __builtin_atanhf(x))
MSL_MATH_1(ceil, __builtin_ceilf(x))
MSL_MATH_1(cos, __builtin_cosf(x))
MSL_MATH_1(cosh, __builtin_coshf(x))
MSL_MATH_1(cospi, static_cast<float>(msl_::cosine_of_turns(x)))
MSL_MATH_1(exp, __builtin_expf(x))
MSL_MATH_1(exp10, static_cast<float>(__builtin_pow(10.0, static_cast<double>(x))))
MSL_MATH_1(exp2, __builtin_exp2f(x))
MSL_MATH_1(fabs, __builtin_fabsf(x))
MSL_MATH_1(floor, __builtin_floorf(x))
MSL_MATH_1(fract, msl_::least(x - __builtin_floorf(x), 0x1.fffffep-1f))
MSL_MATH_1(log, __builtin_logf(x))
MSL_MATH_1(log10, __builtin_log10f(x))
MSL_MATH_1(log2, __builtin_log2f(x))
MSL_MATH_1(rint, __builtin_rintf(x))
MSL_MATH_1(round, __builtin_roundf(x))
MSL_MATH_1(rsqrt, 1.0f / __builtin_sqrtf(x))
MSL_MATH_1(saturate, msl_::clamp_unit(x))
MSL_MATH_1(sign, x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x == x ? x : 0.0f)
MSL_MATH_1(sin, __builtin_sinf(x))
MSL_MATH_1(sinh, __builtin_sinhf(x))
MSL_MATH_1(sinpi, static_cast<float>(msl_::sine_of_turns(x)))
MSL_MATH_1(sqrt, __builtin_sqrtf(x))
MSL_MATH_1(tan, __builtin_tanf(x))
MSL_MATH_1(tanh, __builtin_tanhf(x))
MSL_MATH_1(tanpi, static_cast<float>(msl_::sine_of_turns(x) / msl_::cosine_of_turns(x)))
MSL_MATH_1(trunc, __builtin_truncf(x))

// Those that integers have too are lifted to vectors in integer.h, when all overloads are known.
MSL_MATH_2(atan2, __builtin_atan2f(x, y))
MSL_MATH_2(copysign, __builtin_copysignf(x, y))
MSL_MATH_2(divide, x / y)
MSL_MATH_2(fdim, x > y ? x - y : x <= y ? 0.0f : x + y)
MSL_MATH_2(fmax, msl_::most(x, y))
MSL_MATH_2(fmin, msl_::least(x, y))
MSL_MATH_2(fmod, __builtin_fmodf(x, y))
MSL_SCALAR_2(max, msl_::most(x, y))
MSL_SCALAR_2(min, msl_::least(x, y))
MSL_MATH_2(pow, __builtin_powf(x, y))
MSL_MATH_2(powr, __builtin_powf(x, y))
MSL_MATH_2(step, y < x ? 0.0f : 1.0f)

MSL_SCALAR_3(clamp, msl_::least(msl_::most(x, y), z))
MSL_MATH_3(fma, __builtin_fmaf(x, y, z))
MSL_MATH_3(fmax3, msl_::most(x, msl_::most(y, z)))
MSL_MATH_3(fmedian3, msl_::median(x, y, z))
MSL_MATH_3(fmin3, msl_::least(x, msl_::least(y, z)))
MSL_SCALAR_3(max3, msl_::most(x, msl_::most(y, z)))
MSL_SCALAR_3(median3, msl_::median(x, y, z))
MSL_SCALAR_3(min3, msl_::least(x, msl_::least(y, z)))
MSL_MATH_3(mix, x + (y - x) * z)
// The last operand may be the only vector.
MSL_INLINE float smoothstep(float low, float high, float x) { return msl_::ramp(low, high, x); }
MSL_INLINE half smoothstep(half low, half high, half x) {
  return half(msl_::ramp(static_cast<float>(low), static_cast<float>(high), static_cast<float>(x)));
}
template <class A, class B, class X, class = msl_::if_vector<X>>
MSL_INLINE msl_::vector_of<X> smoothstep(const A& low, const B& high, const X& x) {
  using E = msl_::element_of<X>;
  msl_::vector_of<X> r;
  for (int i = 0; i < msl_::lanes_of<X>; i++)
    r.d[i] = smoothstep(msl_::element<E>(low, i), msl_::element<E>(high, i), msl_::element<E>(x, i));
  return r;
}
#undef MSL_MATH_1
#undef MSL_MATH_2
#undef MSL_MATH_3
#undef MSL_SCALAR_2
#undef MSL_SCALAR_3

// What is not elementwise in float: other results, out parameters, neighbours in the type's own precision.
#define MSL_FLOAT_FUNCTIONS(T, TEMPLATE)                                                                               \
  TEMPLATE MSL_INLINE T abs(T x) { return fabs(x); }                                                                   \
  TEMPLATE MSL_INLINE T ldexp(T x, int exponent) { return T(__builtin_ldexpf(static_cast<float>(x), exponent)); }      \
  TEMPLATE MSL_INLINE T frexp(T x, int& exponent) { return T(__builtin_frexpf(static_cast<float>(x), &exponent)); }    \
  TEMPLATE MSL_INLINE int ilogb(T x) { return __builtin_ilogbf(static_cast<float>(x)); }                               \
  TEMPLATE MSL_INLINE T modf(T x, T& whole) {                                                                          \
    whole = trunc(x);                                                                                                  \
    return __builtin_isinf(static_cast<float>(x)) ? copysign(T(0.0f), x) : T(x - whole);                               \
  }                                                                                                                    \
  TEMPLATE MSL_INLINE T sincos(T x, T& cosine) {                                                                       \
    cosine = cos(x);                                                                                                   \
    return sin(x);                                                                                                     \
  }                                                                                                                    \
  TEMPLATE MSL_INLINE bool isfinite(T x) { return __builtin_isfinite(static_cast<float>(x)); }                         \
  TEMPLATE MSL_INLINE bool isinf(T x) { return __builtin_isinf(static_cast<float>(x)); }                               \
  TEMPLATE MSL_INLINE bool isnan(T x) { return __builtin_isnan(static_cast<float>(x)); }                               \
  TEMPLATE MSL_INLINE bool isnormal(T x) {                                                                             \
    const T magnitude = fabs(x);                                                                                       \
    return magnitude >= numeric_limits<T>::min() && magnitude <= numeric_limits<T>::max();                             \
  }                                                                                                                    \
  TEMPLATE MSL_INLINE bool signbit(T x) { return __builtin_signbit(static_cast<float>(x)); }                           \
  TEMPLATE MSL_INLINE bool isordered(T x, T y) { return x == x && y == y; }                                            \
  TEMPLATE MSL_INLINE bool isunordered(T x, T y) { return !isordered(x, y); }
#define MSL_BFLOAT_ONLY template <class B, class = msl_::if_bfloat<B>>
MSL_FLOAT_FUNCTIONS(float, )
MSL_FLOAT_FUNCTIONS(half, )
MSL_FLOAT_FUNCTIONS(B, MSL_BFLOAT_ONLY)
#undef MSL_BFLOAT_ONLY
#undef MSL_FLOAT_FUNCTIONS
MSL_LIFT_1(ilogb)
MSL_LIFT_1(isfinite)
MSL_LIFT_1(isinf)
MSL_LIFT_1(isnan)
MSL_LIFT_1(isnormal)
MSL_LIFT_1(signbit)
MSL_LIFT_2(isordered)
MSL_LIFT_2(isunordered)

MSL_INLINE float nextafter(float x, float y) { return __builtin_nextafterf(x, y); }
template <class B, class = msl_::if_bfloat<B>> MSL_INLINE float nextafter(B x, B y) {
  return __builtin_nextafterf(x, y);
}
MSL_INLINE half nextafter(half x, half y) {
  if (x != x || y != y) return x + y;
  if (x == y) return y;
  if (x == half(0.0f)) return copysign(as_type<half>(ushort(1)), y);
  const ushort bits = as_type<ushort>(x);
  return as_type<half>(ushort((x < y) == (x > half(0.0f)) ? bits + 1 : bits - 1));
}
MSL_LIFT_2(nextafter)

template <class A, class E, class = msl_::if_vector<A>>
MSL_INLINE msl_::vector_of<A> ldexp(const A& a, const E& exponent) {
  msl_::vector_of<A> r;
  for (int i = 0; i < msl_::lanes_of<A>; i++)
    r.d[i] = ldexp(msl_::element<msl_::element_of<A>>(a, i), msl_::element<int>(exponent, i));
  return r;
}
template <class T, int N> MSL_INLINE vec<T, N> frexp(vec<T, N> x, vec<int, N>& exponent) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.d[i] = frexp(x.d[i], exponent.d[i]);
  return r;
}
template <class T, int N> MSL_INLINE vec<T, N> modf(vec<T, N> x, vec<T, N>& whole) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.d[i] = modf(x.d[i], whole.d[i]);
  return r;
}
template <class T, int N> MSL_INLINE vec<T, N> sincos(vec<T, N> x, vec<T, N>& cosine) {
  cosine = cos(x);
  return sin(x);
}

} // namespace metal
