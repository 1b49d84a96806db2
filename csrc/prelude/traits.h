// <metal_type_traits> and <metal_limits>.
#pragma once
#include <limits>
#include <type_traits>

#include "scalar.h"

namespace msl_ {
template <class T> constexpr bool is_16bit_float = std::is_same_v<T, half> || std::is_same_v<T, bfloat>;
} // namespace msl_

namespace metal {

using ::bfloat;
using ::half;
using ::ptrdiff_t;
using ::size_t;
using ::uchar;
using ::uint;
using ::ulong;
using ::ushort;

#define MSL_TRAIT(name)                                                                                                \
  using std::name;                                                                                                     \
  using std::name##_v;
#define MSL_TYPE_TRAIT(name)                                                                                           \
  using std::name;                                                                                                     \
  using std::name##_t;
MSL_TRAIT(conjunction)
MSL_TRAIT(disjunction)
MSL_TRAIT(extent)
MSL_TRAIT(is_array)
MSL_TRAIT(is_assignable)
MSL_TRAIT(is_base_of)
MSL_TRAIT(is_class)
MSL_TRAIT(is_const)
MSL_TRAIT(is_constructible)
MSL_TRAIT(is_convertible)
MSL_TRAIT(is_copy_assignable)
MSL_TRAIT(is_copy_constructible)
MSL_TRAIT(is_default_constructible)
MSL_TRAIT(is_enum)
MSL_TRAIT(is_function)
MSL_TRAIT(is_integral)
MSL_TRAIT(is_lvalue_reference)
MSL_TRAIT(is_pod)
MSL_TRAIT(is_pointer)
MSL_TRAIT(is_reference)
MSL_TRAIT(is_rvalue_reference)
MSL_TRAIT(is_same)
MSL_TRAIT(is_standard_layout)
MSL_TRAIT(is_trivial)
MSL_TRAIT(is_trivially_copyable)
MSL_TRAIT(is_union)
MSL_TRAIT(is_unsigned)
MSL_TRAIT(is_void)
MSL_TRAIT(is_volatile)
MSL_TRAIT(negation)
MSL_TRAIT(rank)
MSL_TYPE_TRAIT(add_const)
MSL_TYPE_TRAIT(add_cv)
MSL_TYPE_TRAIT(add_lvalue_reference)
MSL_TYPE_TRAIT(add_pointer)
MSL_TYPE_TRAIT(add_rvalue_reference)
MSL_TYPE_TRAIT(add_volatile)
MSL_TYPE_TRAIT(common_type)
MSL_TYPE_TRAIT(conditional)
MSL_TYPE_TRAIT(decay)
MSL_TYPE_TRAIT(enable_if)
MSL_TYPE_TRAIT(make_signed)
MSL_TYPE_TRAIT(make_unsigned)
MSL_TYPE_TRAIT(remove_all_extents)
MSL_TYPE_TRAIT(remove_const)
MSL_TYPE_TRAIT(remove_cv)
MSL_TYPE_TRAIT(remove_extent)
MSL_TYPE_TRAIT(remove_pointer)
MSL_TYPE_TRAIT(remove_reference)
MSL_TYPE_TRAIT(remove_volatile)
MSL_TYPE_TRAIT(underlying_type)
#undef MSL_TRAIT
#undef MSL_TYPE_TRAIT
using std::alignment_of;
using std::bool_constant;
using std::declval;
using std::false_type;
using std::integral_constant;
using std::true_type;

template <class T>
struct is_floating_point
    : std::bool_constant<std::is_floating_point_v<T> || msl_::is_16bit_float<std::remove_cv_t<T>>> {};
template <class T> constexpr bool is_floating_point_v = is_floating_point<T>::value;
template <class T>
struct is_arithmetic : std::bool_constant<std::is_arithmetic_v<T> || msl_::is_16bit_float<std::remove_cv_t<T>>> {};
template <class T> constexpr bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T>
struct is_signed : std::bool_constant<std::is_signed_v<T> || msl_::is_16bit_float<std::remove_cv_t<T>>> {};
template <class T> constexpr bool is_signed_v = is_signed<T>::value;
template <class T> struct is_scalar : std::bool_constant<std::is_scalar_v<T> || is_arithmetic_v<T>> {};
template <class T> constexpr bool is_scalar_v = is_scalar<T>::value;
template <class T> struct is_fundamental : std::bool_constant<std::is_fundamental_v<T> || is_arithmetic_v<T>> {};
template <class T> constexpr bool is_fundamental_v = is_fundamental<T>::value;

// Internals of Apple's headers that libraries reach for.
template <class... T> using _disjunction = std::disjunction<T...>;
template <class... T> using _conjunction = std::conjunction<T...>;
template <class T> using _negation = std::negation<T>;
template <class T> using remove_addrspace_t = T;
template <class T> struct remove_addrspace {
  using type = T;
};
template <class T> using uniform = T;
template <class T> constexpr T make_uniform(T value) { return value; }

// The second parameter lets shaders specialise it with a condition.
template <class T, class = void> struct numeric_limits : std::numeric_limits<T> {};

} // namespace metal

namespace msl_ {
template <class T> struct float16_limits {
  static constexpr bool is_specialized = true, is_signed = true, is_integer = false, is_exact = false;
  static constexpr bool has_infinity = true, has_quiet_NaN = true, has_signaling_NaN = true, is_iec559 = true;
  static constexpr bool is_bounded = true, is_modulo = false, traps = false;
  static constexpr int radix = 2;
  static constexpr T infinity() { return T(__builtin_inff()); }
  static constexpr T quiet_NaN() { return T(__builtin_nanf("")); }
  static constexpr T signaling_NaN() { return T(__builtin_nanf("")); }
  static constexpr T round_error() { return T(0.5f); }
};
} // namespace msl_

namespace metal {
template <class D> struct numeric_limits<half, D> : msl_::float16_limits<half> {
  static constexpr int digits = 11, digits10 = 3, max_digits10 = 5;
  static constexpr int min_exponent = -13, min_exponent10 = -4, max_exponent = 16, max_exponent10 = 4;
  static constexpr half max() { return half(65504.0f); }
  static constexpr half lowest() { return half(-65504.0f); }
  static constexpr half min() { return half(0x1p-14f); }
  static constexpr half denorm_min() { return half(0x1p-24f); }
  static constexpr half epsilon() { return half(0x1p-10f); }
};
template <class D> struct numeric_limits<bfloat, D> : msl_::float16_limits<bfloat> {
  static constexpr int digits = 8, digits10 = 2, max_digits10 = 4;
  static constexpr int min_exponent = -125, min_exponent10 = -37, max_exponent = 128, max_exponent10 = 38;
  static constexpr bfloat max() { return bfloat(0x1.fep127f); }
  static constexpr bfloat lowest() { return bfloat(-0x1.fep127f); }
  static constexpr bfloat min() { return bfloat(0x1p-126f); }
  static constexpr bfloat denorm_min() { return bfloat(0x1p-133f); }
  static constexpr bfloat epsilon() { return bfloat(0x1p-7f); }
};

} // namespace metal
