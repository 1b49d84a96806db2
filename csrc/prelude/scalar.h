// Scalar types: the integer names, half, bfloat.
#pragma once
#include <stddef.h>
#include <limits>
#include <stdint.h>
#include <type_traits>

#include "platform.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

namespace msl_ {

// A 16-bit floating-point type of which only the encoding is given: values convert from and to float, and each
// operation rounds its result. Format has encode(float) and decode(uint16_t).
namespace numbers {
template <class Format> struct Float16;
struct BrainFormat;
struct HalfFormat;
} // namespace numbers
using numbers::Float16;

template <class T> struct is_float16 : std::false_type {};
template <class F> struct is_float16<Float16<F>> : std::true_type {};

// A class that converts to a built-in number, and by that to a 16-bit float, were that built in too.
template <class T>
constexpr bool is_number_like = std::is_class_v<T> && !is_float16<T>::value && std::is_convertible_v<const T&, float>;

// Where the platform converts in hardware (MSL_HARDWARE_FORMATS), the text below serves constant expressions.
#if defined(MSL_HARDWARE_FORMATS)
#define MSL_IN_HARDWARE(call)                                                                                          \
  if (!__builtin_is_constant_evaluated()) return call;
#else
#define MSL_IN_HARDWARE(call)
#endif

namespace numbers {

struct BrainFormat {
  static constexpr uint16_t encode(float value) { // round to nearest even; NaN stays NaN
    MSL_IN_HARDWARE(encode_bfloat(value))
    const uint32_t bits = __builtin_bit_cast(uint32_t, value);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
  static constexpr float decode(uint16_t bits) { return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16); }
};

struct HalfFormat {
#if defined(__ARM_FP16_FORMAT_IEEE)
  static constexpr uint16_t encode(float value) { return __builtin_bit_cast(uint16_t, static_cast<__fp16>(value)); }
  static constexpr float decode(uint16_t bits) { return __builtin_bit_cast(__fp16, bits); }
#else
  static constexpr uint16_t encode(float value) {
    MSL_IN_HARDWARE(encode_half(value))
    const uint32_t bits = __builtin_bit_cast(uint32_t, value), sign = bits >> 16 & 0x8000,
                   magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00); // rounds to infinity
    if (magnitude >= 0x38800000)                                              // normal
      return static_cast<uint16_t>(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
    if (magnitude < 0x33000000) return static_cast<uint16_t>(sign); // rounds to zero
    const uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000, shift = 126 - (magnitude >> 23);
    const uint32_t rest = mantissa & ((1u << shift) - 1), tie = 1u << (shift - 1), kept = mantissa >> shift;
    return static_cast<uint16_t>(sign | (kept + (rest > tie || (rest == tie && (kept & 1)))));
  }
  static constexpr float decode(uint16_t bits) {
    MSL_IN_HARDWARE(decode_half(bits))
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16, rest = bits & 0x7fff;
    if (rest >= 0x7c00) return __builtin_bit_cast(float, sign | 0x7f800000 | (rest & 0x3ff) << 13);
    if (rest >= 0x400) return __builtin_bit_cast(float, sign | ((rest << 13) + 0x38000000));
    const float small = static_cast<float>(rest) * 0x1p-24f;
    return sign != 0 ? -small : small;
  }
#endif
};
#undef MSL_IN_HARDWARE

} // namespace numbers
} // namespace msl_

#if MSL_NATIVE_HALF
typedef _Float16 half;
#else
typedef msl_::Float16<msl_::numbers::HalfFormat> half;
#endif
typedef msl_::Float16<msl_::numbers::BrainFormat> bfloat;

namespace msl_ {

// What C++ calls arithmetic, and native half. Float16 itself is not meant.
template <class T>
constexpr bool is_number = std::is_arithmetic_v<T> || (std::is_same_v<T, half> && !is_float16<T>::value);
template <class T, class R = T> using if_number = std::enable_if_t<is_number<T>, R>;

// What an operation of a 16-bit float with T results in: floats widen, integers do not.
template <class F, class T> using promoted = std::conditional_t<std::is_integral_v<T>, Float16<F>, float>;

// The integer that a number is cut to: the nearest one of the type if there is none, 0 for NaN.
template <class To> MSL_INLINE constexpr To saturated(float value) {
#if defined(MSL_HARDWARE_FORMATS)
  if (!__builtin_is_constant_evaluated()) {
    if constexpr (std::is_same_v<To, int32_t>) return cut_to_int(value);
    if constexpr (std::is_same_v<To, uint32_t>) return cut_to_uint(value);
  }
#endif
  constexpr To least = std::numeric_limits<To>::min(), most = std::numeric_limits<To>::max();
  constexpr float end = 2.0f * static_cast<float>(most / 2 + 1); // exact
  if (value >= end) return most;
  if (value > static_cast<float>(least)) return static_cast<To>(value);
  return value == value ? least : To(0);
}
// Whether a conversion needs that.
template <class To, class From>
constexpr bool is_saturating =
    std::is_integral_v<To> && !std::is_same_v<std::remove_cv_t<To>, bool> &&
    (std::is_floating_point_v<From> || std::is_same_v<From, half> || is_float16<From>::value);

// Quotient and remainder of integers.
template <class A, class B, class R = decltype(A() / B())> MSL_INLINE constexpr R quotient(A a, B b) {
  const R x = static_cast<R>(a), y = static_cast<R>(b);
  if constexpr (std::is_signed_v<R>) {
    using U = std::make_unsigned_t<R>;
    if (U(y) + 1 <= 1) return y == 0 ? R(-1) : R(U(0) - U(x)); // 0 or -1
  } else {
    if (y == 0) return R(-1);
  }
  return x / y;
}
template <class T> MSL_INLINE constexpr auto ratio(T x, T y) {
  if constexpr (std::is_integral_v<T>)
    return quotient(x, y);
  else
    return x / y;
}
template <class A, class B, class R = decltype(A() / B())> MSL_INLINE constexpr R remainder(A a, B b) {
  const R x = static_cast<R>(a), y = static_cast<R>(b);
  if constexpr (std::is_signed_v<R>) {
    using U = std::make_unsigned_t<R>;
    if (U(y) + 1 <= 1) return y == 0 ? x : R(0);
  } else {
    if (y == 0) return x;
  }
  return x % y;
}

// static_cast between any two scalars, half and bfloat too.
template <class To, class From> MSL_INLINE constexpr To scalar_cast(From value) {
  if constexpr (std::is_enum_v<From>)
    return static_cast<To>(static_cast<std::underlying_type_t<From>>(value));
  else if constexpr (is_saturating<To, From>)
    return saturated<To>(static_cast<float>(value));
  else
    return static_cast<To>(value);
}

// In a namespace of its own, as what lies beside a type is found by the names of functions called with it.
namespace numbers {

template <class Format> struct Float16 {
  uint16_t bits;

  Float16() = default;
  // half and bfloat do not convert into each other silently; everything else does, both ways, as in MSL.
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  constexpr Float16(T value) : bits(Format::encode(static_cast<float>(value))) {}
  template <class T, class = std::enable_if_t<!std::is_arithmetic_v<T> && is_number<T>>, class = void>
  explicit constexpr Float16(T value) : bits(Format::encode(static_cast<float>(value))) {}
  template <class F, class = std::enable_if_t<!std::is_same_v<F, Format>>>
  explicit constexpr Float16(Float16<F> value) : bits(Format::encode(F::decode(value.bits))) {}

  // Not to int: `condition ? value : 0` would have two ways, as C++ ranks nothing there. MSL has both; this is the
  // rarer.
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T> && !std::is_same_v<T, int>>>
  constexpr operator T() const {
    return scalar_cast<T>(Format::decode(bits));
  }
  template <class T, class = std::enable_if_t<is_number<T> && (!std::is_arithmetic_v<T> || std::is_same_v<T, int>)>,
            class = void>
  explicit constexpr operator T() const {
    return scalar_cast<T>(Format::decode(bits));
  }

  template <class T, class = std::enable_if_t<is_number_like<T>>, class = void, class = void>
  explicit constexpr Float16(const T& value) : Float16(static_cast<float>(value)) {}
  template <class T, class = std::enable_if_t<is_number_like<T>>> constexpr Float16& operator=(const T& value) {
    return *this = Float16(static_cast<float>(value));
  }

  constexpr Float16& operator++() { return *this = Float16(Format::decode(bits) + 1.0f); }
  constexpr Float16& operator--() { return *this = Float16(Format::decode(bits) - 1.0f); }
  constexpr Float16 operator++(int) {
    const Float16 old = *this;
    ++*this;
    return old;
  }
  constexpr Float16 operator--(int) {
    const Float16 old = *this;
    --*this;
    return old;
  }
};

template <class F> constexpr Float16<F> operator+(Float16<F> a) { return a; }
template <class F> constexpr bool operator!(Float16<F> a) { return F::decode(a.bits) == 0.0f; }
template <class F> constexpr Float16<F> operator-(Float16<F> a) {
  a.bits ^= 0x8000;
  return a;
}

// Every operator has an exact match for each pair of operands, or the many conversions would make it ambiguous.
// clang-format off
#define MSL_ARITHMETIC(op)                                                                                             \
  template <class F> constexpr Float16<F> operator op(Float16<F> a, Float16<F> b) {                                    \
    return Float16<F>(F::decode(a.bits) op F::decode(b.bits));                                                         \
  }                                                                                                                    \
  template <class F, class T> constexpr if_number<T, promoted<F, T>> operator op(Float16<F> a, T b) {                  \
    return promoted<F, T>(F::decode(a.bits) op static_cast<float>(b));                                                 \
  }                                                                                                                    \
  template <class F, class T> constexpr if_number<T, promoted<F, T>> operator op(T a, Float16<F> b) {                  \
    return promoted<F, T>(static_cast<float>(a) op F::decode(b.bits));                                                 \
  }                                                                                                                    \
  template <class F> constexpr Float16<F>& operator op##=(Float16<F>& a, Float16<F> b) { return a = a op b; }          \
  template <class F, class T> constexpr if_number<T, Float16<F>&> operator op##=(Float16<F>& a, T b) {                 \
    return a = Float16<F>(F::decode(a.bits) op static_cast<float>(b));                                                 \
  }                                                                                                                    \
  template <class F, class T> constexpr if_number<T, T&> operator op##=(T& a, Float16<F> b) {                          \
    return a = static_cast<T>(static_cast<float>(a) op F::decode(b.bits));                                             \
  }
// clang-format on
MSL_ARITHMETIC(+)
MSL_ARITHMETIC(-)
MSL_ARITHMETIC(*)
MSL_ARITHMETIC(/)
#undef MSL_ARITHMETIC

#define MSL_COMPARISON(op)                                                                                             \
  template <class F> constexpr bool operator op(Float16<F> a, Float16<F> b) {                                          \
    return F::decode(a.bits) op F::decode(b.bits);                                                                     \
  }                                                                                                                    \
  template <class F, class T> constexpr if_number<T, bool> operator op(Float16<F> a, T b) {                            \
    return F::decode(a.bits) op static_cast<float>(b);                                                                 \
  }                                                                                                                    \
  template <class F, class T> constexpr if_number<T, bool> operator op(T a, Float16<F> b) {                            \
    return static_cast<float>(a) op F::decode(b.bits);                                                                 \
  }
MSL_COMPARISON(==)
MSL_COMPARISON(!=)
MSL_COMPARISON(<)
MSL_COMPARISON(<=)
MSL_COMPARISON(>)
MSL_COMPARISON(>=)
#undef MSL_COMPARISON

} // namespace numbers

} // namespace msl_
