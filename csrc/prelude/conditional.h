// Helpers of rewritten conditionals: `c ? x : 0` where x is half or bfloat (torch_foundry/msl/conditionals.py).
#pragma once
#include "scalar.h"

namespace msl_ {
template <class T, class Literal> struct arm_ {
  using type = Literal;
};
template <class T, class Literal> struct arm_<T*, Literal> {
  using type = T*;
};
template <class Literal> struct arm_<half, Literal> {
  using type = half;
};
template <class Literal> struct arm_<bfloat, Literal> {
  using type = bfloat;
};
template <class T, class Literal>
using arm = typename arm_<std::remove_cv_t<std::remove_reference_t<T>>, Literal>::type;
template <class T> struct widened {
  using type = T&&;
};
template <> struct widened<half> {
  using type = float;
};
template <> struct widened<bfloat> {
  using type = float;
};
template <> struct widened<half&> {
  using type = float;
};
template <> struct widened<bfloat&> {
  using type = float;
};
template <> struct widened<const half&> {
  using type = float;
};
template <> struct widened<const bfloat&> {
  using type = float;
};
template <class T> constexpr typename widened<T>::type widen(T&& v) {
  return static_cast<typename widened<T>::type>(v);
}
} // namespace msl_
