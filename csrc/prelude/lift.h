// Makes vector functions of scalar ones. The result's element type is whatever the scalar function returns.
#pragma once
#include "vector.h"

#define MSL_LIFT_1(name)                                                                                               \
  template <class A, class = if_vector<A>> MSL_INLINE auto name(const A& a) {                                          \
    using E = element_of<A>;                                                                                           \
    vec<decltype(name(E())), lanes_of<A>> r;                                                                           \
    for (int i = 0; i < lanes_of<A>; i++) r.d[i] = name(element<E>(a, i));                                             \
    return r;                                                                                                          \
  }

#define MSL_LIFT_2(name)                                                                                               \
  template <class A, class B, class = if_pair<A, B>> MSL_INLINE auto name(const A& a, const B& b) {                    \
    using E = typename operand_pair<A, B>::element;                                                                    \
    vec<decltype(name(E(), E())), operand_pair<A, B>::lanes> r;                                                        \
    for (int i = 0; i < operand_pair<A, B>::lanes; i++) r.d[i] = name(element<E>(a, i), element<E>(b, i));             \
    return r;                                                                                                          \
  }

// The first operand is the vector; the others are vectors of its type or scalars.
#define MSL_LIFT_3(name)                                                                                               \
  template <class A, class B, class C, class = if_pair<A, B>, class = if_pair<A, C>, class = if_vector<A>>             \
  MSL_INLINE auto name(const A& a, const B& b, const C& c) {                                                           \
    using E = element_of<A>;                                                                                           \
    vec<decltype(name(E(), E(), E())), lanes_of<A>> r;                                                                 \
    for (int i = 0; i < lanes_of<A>; i++) r.d[i] = name(element<E>(a, i), element<E>(b, i), element<E>(c, i));         \
    return r;                                                                                                          \
  }
