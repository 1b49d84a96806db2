// What lanes pass to each other, and the operations that combine values: of lanes, and of atomics with what is there.
#pragma once
#include "integer.h"
#include "matrix.h"

namespace msl_ {

// What is passed between lanes: swizzles and packed vectors as plain vectors.
template <class T, class = void> struct passed_type {
  using type = T;
};
template <class T> struct passed_type<T, if_vector<T>> {
  using type = vector_of<T>;
};
template <class T> using passed = typename passed_type<T>::type;

struct Sum {
  static constexpr bool has_neutral = true;
  template <class T> static MSL_INLINE T neutral() { return T(0); }
  template <class T> static MSL_INLINE T combine(T a, T b) { return T(a + b); }
};
struct Difference { // of atomics only
  template <class T> static MSL_INLINE T combine(T a, T b) { return T(a - b); }
};
struct Product {
  static constexpr bool has_neutral = true;
  template <class T> static MSL_INLINE T neutral() { return T(1); }
  template <class T> static MSL_INLINE T combine(T a, T b) { return T(a * b); }
};
// For the others a repeated value is neutral, or zero is.
struct Max {
  static constexpr bool has_neutral = false;
  template <class T> static MSL_INLINE T combine(T a, T b) { return metal::max(a, b); }
};
struct Min {
  static constexpr bool has_neutral = false;
  template <class T> static MSL_INLINE T combine(T a, T b) { return metal::min(a, b); }
};
struct And {
  static constexpr bool has_neutral = false;
  template <class T> static MSL_INLINE T combine(T a, T b) { return T(a & b); }
};
struct Or {
  static constexpr bool has_neutral = false;
  template <class T> static MSL_INLINE T combine(T a, T b) { return T(a | b); }
};
struct Xor {
  static constexpr bool has_neutral = true;
  template <class T> static MSL_INLINE T neutral() { return T(0); }
  template <class T> static MSL_INLINE T combine(T a, T b) {
    if constexpr (std::is_same_v<T, float>)
      return as_type<float>(as_type<uint>(a) ^ as_type<uint>(b)); // libraries have wrappers for it, if no use
    else
      return T(a ^ b);
  }
};

} // namespace msl_
