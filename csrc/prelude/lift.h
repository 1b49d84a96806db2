// Makes vector functions of scalar ones. The result's element type is whatever the scalar function returns.
#pragma once
#include "vector.h"

#define MSL_LIFT_1(name)                                                                                               \
  template <class A, class = msl_::if_vector<A>> MSL_INLINE auto name(const A& a) {                                    \
    using E = msl_::element_of<A>;                                                                                     \
    vec<decltype(name(E())), msl_::lanes_of<A>> r;                                                                     \
    for (int i = 0; i < msl_::lanes_of<A>; i++) r.d[i] = name(msl_::element<E>(a, i));                                 \
    return r;                                                                                                          \
  }

#define MSL_LIFT_2(name)                                                                                               \
  template <class A, class B, class = msl_::if_pair<A, B>> MSL_INLINE auto name(const A& a, const B& b) {              \
    using E = typename msl_::operand_pair<A, B>::element;                                                              \
    vec<decltype(name(E(), E())), msl_::operand_pair<A, B>::lanes> r;                                                  \
    for (int i = 0; i < msl_::operand_pair<A, B>::lanes; i++)                                                          \
      r.d[i] = name(msl_::element<E>(a, i), msl_::element<E>(b, i));                                                   \
    return r;                                                                                                          \
  }

// The first operand is the vector; the others are vectors of its type or scalars.
#define MSL_LIFT_3(name)                                                                                               \
  template <class A, class B, class C, class = msl_::if_pair<A, B>, class = msl_::if_pair<A, C>,                       \
            class = msl_::if_vector<A>>                                                                                \
  MSL_INLINE auto name(const A& a, const B& b, const C& c) {                                                           \
    using E = msl_::element_of<A>;                                                                                     \
    vec<decltype(name(E(), E(), E())), msl_::lanes_of<A>> r;                                                           \
    for (int i = 0; i < msl_::lanes_of<A>; i++)                                                                        \
      r.d[i] = name(msl_::element<E>(a, i), msl_::element<E>(b, i), msl_::element<E>(c, i));                           \
    return r;                                                                                                          \
  }
