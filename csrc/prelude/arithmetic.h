// Integer arithmetic that C++ leaves undefined and Apple's GPUs do not: floating point that does not fit an integer,
// and division by zero. The translator writes these calls (torch_foundry/msl/arithmetic.py).
//
// Out of range gives the nearest integer of the type, NaN gives 0. x / 0 has all bits set, x % 0 is x; the least
// integer divided by -1 is itself, with a remainder of 0. On CUDA a division is the GPU's own (MSL_DIVIDES_AS_THE_GPU).
#pragma once
#include "vector.h"

namespace msl_ {

template <class T>
constexpr bool is_plain = std::is_arithmetic_v<T> || is_16bit_float<T> || std::is_enum_v<T> || std::is_pointer_v<T>;

// static_cast, but for what does not fit.
template <class To, class From, class = std::enable_if_t<is_plain<From>>> MSL_INLINE constexpr To convert(From value) {
  if constexpr (is_saturating<To, From>)
    return saturated<std::remove_cv_t<To>>(static_cast<float>(value));
  else
    return static_cast<To>(value);
}
template <class To, class From, class = std::enable_if_t<!is_plain<From>>, class = void>
MSL_INLINE constexpr To convert(const From& value) {
  return static_cast<To>(value);
}

#if defined(MSL_DIVIDES_AS_THE_GPU) && !defined(MSL_CHECKED) // it never traps, and a guard costs each launch 0.3 us
template <class T> MSL_INLINE constexpr T&& divisor(T&& value) { return static_cast<T&&>(value); }
#else

// A divisor with operators of its own; in checked builds it knows its line.
namespace divisors {
template <class T> struct Divisor {
  T value;
#if defined(MSL_CHECKED)
  int line;
  const char* file;
#endif
};
} // namespace divisors

template <class T> constexpr bool has_integers = std::is_integral_v<element_of<T>>;

#if defined(MSL_CHECKED)
#define MSL_PLACE , int line = __builtin_LINE(), const char *file = __builtin_FILE()
#define MSL_ITS_PLACE , line, file
template <class T> MSL_INLINE constexpr void check(const divisors::Divisor<T>& divisor) {
  bool zero = false;
  if constexpr (is_vector<T>)
    for (int i = 0; i < lanes_of<T>; i++) zero |= divisor.value.d[i] == 0;
  else
    zero = divisor.value == 0;
  if (zero) report_zero_divisor(divisor.line, divisor.file);
}
#else
#define MSL_PLACE
#define MSL_ITS_PLACE
template <class T> MSL_INLINE constexpr void check(const divisors::Divisor<T>&) {}
#endif

template <class T, class = std::enable_if_t<std::is_integral_v<T>>>
MSL_INLINE constexpr divisors::Divisor<T> divisor(T value MSL_PLACE) {
  return {value MSL_ITS_PLACE};
}
template <class T, class = if_vector<T>, class = std::enable_if_t<has_integers<T>>>
MSL_INLINE divisors::Divisor<vector_of<T>> divisor(const T& value MSL_PLACE) {
  return {value MSL_ITS_PLACE};
}
template <class T, class = std::enable_if_t<!has_integers<std::remove_cv_t<std::remove_reference_t<T>>>>, class = void,
          class = void>
MSL_INLINE constexpr T&& divisor(T&& value) {
  return static_cast<T&&>(value);
}
#undef MSL_PLACE
#undef MSL_ITS_PLACE

namespace divisors {

#define MSL_DIVISION(op, function)                                                                                     \
  template <class A, class T, class = std::enable_if_t<is_plain<A>>>                                                   \
  MSL_INLINE constexpr auto operator op(A a, Divisor<T> divisor) {                                                     \
    if constexpr (std::is_integral_v<A> || std::is_enum_v<A>) {                                                        \
      check(divisor);                                                                                                  \
      if constexpr (std::is_integral_v<T>)                                                                             \
        return function(a, divisor.value);                                                                             \
      else                                                                                                             \
        return a op divisor.value;                                                                                     \
    } else {                                                                                                           \
      return a op divisor.value;                                                                                       \
    }                                                                                                                  \
  }                                                                                                                    \
  template <class A, class T, class = std::enable_if_t<!is_plain<A>>, class = void>                                    \
  MSL_INLINE constexpr auto operator op(const A& a, Divisor<T> divisor) {                                              \
    if constexpr (is_vector<A> && has_integers<A>) check(divisor);                                                     \
    return a op divisor.value;                                                                                         \
  }                                                                                                                    \
  template <class A, class T> MSL_INLINE constexpr A& operator op## = (A & a, Divisor<T> divisor) {                    \
    if constexpr (is_plain<A> || is_vector<A>)                                                                         \
      return a = static_cast<A>(a op divisor);                                                                         \
    else                                                                                                               \
      return a op## = divisor.value;                                                                                   \
  }
MSL_DIVISION(/, quotient)
MSL_DIVISION(%, remainder)
#undef MSL_DIVISION

} // namespace divisors
#endif
} // namespace msl_
