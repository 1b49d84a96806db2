// All functions of <metal_math>, <metal_common> and <metal_geometric>, as declarations for another namespace.
#pragma once

// clang-format off
// Those of floating point alone, which fast:: and precise:: have for float.
#define MSL_FLOAT_NAMES(DO)                                                                                            \
  DO(abs) DO(acos) DO(acosh) DO(asin) DO(asinh) DO(atan) DO(atan2) DO(atanh) DO(ceil) DO(copysign) DO(cos) DO(cosh)    \
  DO(cospi) DO(divide) DO(exp) DO(exp10) DO(exp2) DO(fabs) DO(fdim) DO(floor) DO(fma) DO(fmax) DO(fmax3)               \
  DO(fmedian3) DO(fmin) DO(fmin3) DO(fmod) DO(fract) DO(log) DO(log10) DO(log2) DO(nextafter) DO(pow) DO(powr)         \
  DO(rint) DO(round) DO(rsqrt) DO(saturate) DO(sign) DO(sin) DO(sinh) DO(sinpi) DO(smoothstep) DO(sqrt) DO(step)       \
  DO(tan) DO(tanh) DO(tanpi) DO(trunc)
#define MSL_OTHER_NAMES(DO)                                                                                            \
  DO(clamp) DO(cross) DO(distance) DO(distance_squared) DO(dot) DO(faceforward) DO(frexp) DO(ilogb) DO(isfinite)       \
  DO(isinf) DO(isnan) DO(isnormal) DO(isordered) DO(isunordered) DO(ldexp) DO(length) DO(length_squared) DO(max)       \
  DO(max3) DO(median3) DO(min) DO(min3) DO(mix) DO(modf) DO(normalize) DO(reflect) DO(refract) DO(signbit)             \
  DO(sincos)
// clang-format on
#define MSL_USE(name) using metal::name;
#define MSL_MATH_NAMES MSL_FLOAT_NAMES(MSL_USE) MSL_OTHER_NAMES(MSL_USE)
