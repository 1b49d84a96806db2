// Vectors of 2, 3 and 4 elements, packed vectors, swizzles.
#pragma once
#include <initializer_list>

#include "swizzle.h"
#include "traits.h"

namespace msl_ {

// The types and their operators have a namespace of their own: what lies beside a type is found by the names of
// functions called with it, and with a vector nothing is, as it is built into Apple's compiler.
namespace vectors {
template <class T, int N> struct vec;
template <class T, int N> struct packed_vec;
template <class T, int... I> struct swizzle;
} // namespace vectors
using vectors::packed_vec;
using vectors::swizzle;
using vectors::vec;

// What an operand is, whether vector, packed vector, swizzle or scalar.
template <class T> struct vector_traits {
  static constexpr int lanes = 0;
  using element = T;
};
template <class T, int N> struct vector_traits<vec<T, N>> {
  static constexpr int lanes = N;
  using element = T;
};
template <class T, int N> struct vector_traits<packed_vec<T, N>> : vector_traits<vec<T, N>> {};
template <class T, int... I> struct vector_traits<swizzle<T, I...>> : vector_traits<vec<T, sizeof...(I)>> {};
template <class T> using bare = std::remove_cv_t<std::remove_reference_t<T>>;
template <class T> constexpr int lanes_of = vector_traits<bare<T>>::lanes;
template <class T> constexpr bool is_vector = lanes_of<T> != 0;
template <class T> using element_of = typename vector_traits<bare<T>>::element;
template <class T> using vector_of = vec<element_of<T>, lanes_of<T>>;
template <class T> using if_vector = std::enable_if_t<is_vector<T>>;

// The pair of operands of an elementwise operation: two vectors of one type, or a vector and a scalar.
template <class A, class B> struct operand_pair {
  using element = std::conditional_t<is_vector<A>, element_of<A>, element_of<B>>;
  static constexpr int lanes = is_vector<A> ? lanes_of<A> : lanes_of<B>;
  template <class S> static constexpr bool is_number = metal::is_arithmetic_v<S> || std::is_enum_v<S>;
  static constexpr bool same = std::is_same_v<element_of<A>, element_of<B>> && lanes_of<A> == lanes_of<B>;
  static constexpr bool mixed = is_vector<A> ? is_number<bare<B>> : is_vector<B> && is_number<bare<A>>;
  static constexpr bool valid = is_vector<A> && is_vector<B> ? same : mixed;
};
template <class A, class B> using if_pair = std::enable_if_t<operand_pair<A, B>::valid>;

// Where element i lies.
template <class X> MSL_INLINE constexpr int vector_index(const X&, int i) { return i; }
template <class T, int... I> MSL_INLINE constexpr int vector_index(const swizzle<T, I...>&, int i) {
  constexpr int index[] = {I...};
  return index[i];
}

// Element i of an operand; a scalar stands for all elements.
template <class E, class X> MSL_INLINE E element(const X& x, int i) {
  if constexpr (is_vector<X>)
    return x.d[vector_index(x, i)];
  else
    return msl_::scalar_cast<E>(x);
}

constexpr int greatest(int a) { return a; }
template <class... R> constexpr int greatest(int a, int b, R... rest) { return greatest(a > b ? a : b, rest...); }

// Writes the elements of one constructor argument from d[at] on; returns where the next argument goes.
template <class T, class A> MSL_INLINE int append(T* d, int at, const A& argument) {
  constexpr int count = is_vector<A> ? lanes_of<A> : 1;
  for (int i = 0; i < count; i++) d[at + i] = msl_::scalar_cast<T>(element<element_of<A>>(argument, i));
  return at + count;
}
template <class A> constexpr int components_of = is_vector<A> ? lanes_of<A> : 1;

namespace vectors {

// A view of some elements of the vector that it lies in, as a union member. Copying it keeps the elements in place.
template <class T, int... I> struct swizzle {
  static constexpr int N = sizeof...(I);
  T d[greatest(I...) + 1];

  MSL_INLINE operator vec<T, N>() const {
    vec<T, N> r;
    for (int i = 0; i < N; i++) r.d[i] = d[vector_index(*this, i)];
    return r;
  }
  MSL_INLINE swizzle& operator=(const vec<T, N>& v) {
    const vec<T, N> copy = v; // it may be (part of) the same vector
    for (int i = 0; i < N; i++) d[vector_index(*this, i)] = copy.d[i];
    return *this;
  }
  MSL_INLINE swizzle& operator=(const swizzle& other) { return *this = static_cast<vec<T, N>>(other); }
  MSL_INLINE T operator[](int i) const { return d[vector_index(*this, i)]; }
};

// clang-format off
template <class T, int N> struct storage;
template <class T> struct storage<T, 2> {
  union {
    T d[2];
    struct { T x, y; };
    struct { T r, g; };
    MSL_SWIZZLES_2(swizzle, T)
  };
};
template <class T> struct storage<T, 3> {
  union {
    T d[3];
    struct { T x, y, z; };
    struct { T r, g, b; };
    MSL_SWIZZLES_3(swizzle, T)
  };
};
template <class T> struct storage<T, 4> {
  union {
    T d[4];
    struct { T x, y, z, w; };
    struct { T r, g, b, a; };
    MSL_SWIZZLES_4(swizzle, T)
  };
};
// clang-format on

template <class T, int N> struct alignas(sizeof(T) * (N == 3 ? 4 : N)) vec : storage<T, N> {
  using storage<T, N>::d;
  using value_type = T;

  vec() = default;
  vec(const vec&) = default;
  MSL_INLINE vec& operator=(const vec& other) {
    for (int i = 0; i < N; i++) d[i] = other.d[i];
    return *this;
  }
  template <class S, class = std::enable_if_t<metal::is_arithmetic_v<S> || std::is_enum_v<S>>>
  MSL_INLINE vec(S scalar) {
    const T value = msl_::scalar_cast<T>(scalar);
    for (int i = 0; i < N; i++) d[i] = value;
  }
  MSL_INLINE vec(const packed_vec<T, N>& packed) { append(d, 0, packed); }
  // Another element type takes an explicit conversion.
  template <class V, class = std::enable_if_t<lanes_of<V> == N && !std::is_same_v<element_of<V>, T>>, class = void>
  explicit MSL_INLINE vec(const V& other) {
    append(d, 0, other);
  }
  template <class A, class B, class... C> MSL_INLINE vec(const A& a, const B& b, const C&... c) {
    static_assert(components_of<A> + components_of<B> + (0 + ... + components_of<C>) == N,
                  "vector constructor: the arguments do not have as many components as the vector");
    int at = append(d, append(d, 0, a), b);
    ((at = append(d, at, c)), ...);
  }
  // In braces the rest is zero, as for the vectors that are built into Apple's compiler.
  template <class A, class = std::enable_if_t<is_vector<A> || metal::is_arithmetic_v<A>>>
  MSL_INLINE vec(std::initializer_list<A> list) {
    int at = 0;
    for (const A& a : list)
      if (at + components_of<A> <= N) at = append(d, at, a);
    for (; at < N; at++) d[at] = T(0);
  }
  MSL_INLINE T& operator[](int i) { return d[i]; }
  MSL_INLINE const T& operator[](int i) const { return d[i]; }
};

// Aligned to its element, without padding.
template <class T, int N> struct packed_vec : storage<T, N> {
  using storage<T, N>::d;
  using value_type = T;

  packed_vec() = default;
  packed_vec(const packed_vec&) = default;
  MSL_INLINE packed_vec& operator=(const packed_vec& other) {
    for (int i = 0; i < N; i++) d[i] = other.d[i];
    return *this;
  }
  template <class A, class = std::enable_if_t<std::is_constructible_v<vec<T, N>, const A&>>>
  MSL_INLINE packed_vec(const A& value) {
    append(d, 0, vec<T, N>(value));
  }
  template <class A, class B, class... C>
  MSL_INLINE packed_vec(const A& a, const B& b, const C&... c) : packed_vec(vec<T, N>(a, b, c...)) {}
  MSL_INLINE T& operator[](int i) { return d[i]; }
  MSL_INLINE const T& operator[](int i) const { return d[i]; }
};

// clang-format off
// Elementwise operators. As in MSL the result has the element type of the operands: no promotion.
#define MSL_ELEMENTWISE(op, expression)                                                                                \
  template <class A, class B, class = if_pair<A, B>> MSL_INLINE auto operator op(const A& a, const B& b) {             \
    using pair = operand_pair<A, B>;                                                                                   \
    using E = typename pair::element;                                                                                  \
    vec<E, pair::lanes> r;                                                                                             \
    for (int i = 0; i < pair::lanes; i++) {                                                                            \
      const E x = element<E>(a, i), y = element<E>(b, i);                                                              \
      r.d[i] = static_cast<E>(expression);                                                                             \
    }                                                                                                                  \
    return r;                                                                                                          \
  }                                                                                                                    \
  template <class A, class B, class = if_pair<A, B>, class = if_vector<A>>                                             \
  MSL_INLINE A& operator op##=(A& a, const B& b) {                                                                     \
    return a = a op b;                                                                                                 \
  }
#define MSL_OPERATOR(op) MSL_ELEMENTWISE(op, x op y)
// clang-format on
MSL_ELEMENTWISE(/, ratio(x, y))
MSL_ELEMENTWISE(%, remainder(x, y))
MSL_OPERATOR(+)
MSL_OPERATOR(-)
MSL_OPERATOR(*)
MSL_OPERATOR(&)
MSL_OPERATOR(|)
MSL_OPERATOR(^)
MSL_OPERATOR(<<)
MSL_OPERATOR(>>)
#undef MSL_OPERATOR
#undef MSL_ELEMENTWISE

#define MSL_OPERATOR(op)                                                                                               \
  template <class A, class B, class = if_pair<A, B>> MSL_INLINE auto operator op(const A& a, const B& b) {             \
    using pair = operand_pair<A, B>;                                                                                   \
    using E = typename pair::element;                                                                                  \
    vec<bool, pair::lanes> r;                                                                                          \
    for (int i = 0; i < pair::lanes; i++) r.d[i] = element<E>(a, i) op element<E>(b, i);                               \
    return r;                                                                                                          \
  }
MSL_OPERATOR(==)
MSL_OPERATOR(!=)
MSL_OPERATOR(<)
MSL_OPERATOR(<=)
MSL_OPERATOR(>)
MSL_OPERATOR(>=)
MSL_OPERATOR(&&)
MSL_OPERATOR(||)
#undef MSL_OPERATOR

template <class A, class = if_vector<A>> MSL_INLINE vector_of<A> operator+(const A& a) { return a; }
template <class A, class = if_vector<A>> MSL_INLINE vector_of<A> operator-(const A& a) {
  vector_of<A> r;
  for (int i = 0; i < lanes_of<A>; i++) r.d[i] = static_cast<element_of<A>>(-element<element_of<A>>(a, i));
  return r;
}
template <class A, class = if_vector<A>> MSL_INLINE vector_of<A> operator~(const A& a) {
  vector_of<A> r;
  for (int i = 0; i < lanes_of<A>; i++) r.d[i] = static_cast<element_of<A>>(~element<element_of<A>>(a, i));
  return r;
}
template <class A, class = if_vector<A>> MSL_INLINE vec<bool, lanes_of<A>> operator!(const A& a) {
  vec<bool, lanes_of<A>> r;
  for (int i = 0; i < lanes_of<A>; i++) r.d[i] = !element<element_of<A>>(a, i);
  return r;
}
template <class A, class = if_vector<A>> MSL_INLINE A& operator++(A& a) { return a = a + element_of<A>(1); }
template <class A, class = if_vector<A>> MSL_INLINE A& operator--(A& a) { return a = a - element_of<A>(1); }
template <class A, class = if_vector<A>> MSL_INLINE vector_of<A> operator++(A& a, int) {
  const vector_of<A> old = a;
  ++a;
  return old;
}
template <class A, class = if_vector<A>> MSL_INLINE vector_of<A> operator--(A& a, int) {
  const vector_of<A> old = a;
  --a;
  return old;
}

} // namespace vectors
} // namespace msl_

namespace metal {

using msl_::vectors::packed_vec;
using msl_::vectors::vec;
template <class T> struct make_scalar {
  using type = msl_::element_of<T>;
};
template <class T> using make_scalar_t = msl_::element_of<T>;

#define MSL_VECTOR_TYPES(X)                                                                                            \
  X(bool) X(char) X(uchar) X(short) X(ushort) X(int) X(uint) X(long) X(ulong) X(half) X(float) X(bfloat)
#define MSL_DECLARE(T)                                                                                                 \
  typedef vec<T, 2> T##2;                                                                                              \
  typedef vec<T, 3> T##3;                                                                                              \
  typedef vec<T, 4> T##4;                                                                                              \
  typedef packed_vec<T, 2> packed_##T##2;                                                                              \
  typedef packed_vec<T, 3> packed_##T##3;                                                                              \
  typedef packed_vec<T, 4> packed_##T##4;
MSL_VECTOR_TYPES(MSL_DECLARE)
#undef MSL_DECLARE

} // namespace metal

// The vector types are visible without `metal::`.
MSL_SHADER_SCOPE_BEGIN
#define MSL_EXPOSE(T)                                                                                                  \
  using metal::T##2;                                                                                                   \
  using metal::T##3;                                                                                                   \
  using metal::T##4;                                                                                                   \
  using metal::packed_##T##2;                                                                                          \
  using metal::packed_##T##3;                                                                                          \
  using metal::packed_##T##4;
MSL_VECTOR_TYPES(MSL_EXPOSE)
#undef MSL_EXPOSE
MSL_SHADER_SCOPE_END
using metal::packed_vec;
using metal::vec;

// Reinterprets the bits. A keyword-like function of MSL: it needs no `metal::`.
template <class To, class From> MSL_INLINE To as_type(const From& from) {
  if constexpr (msl_::is_vector<From> && !std::is_same_v<From, msl_::vector_of<From>>) {
    return as_type<To>(static_cast<msl_::vector_of<From>>(from));
  } else {
    static_assert(sizeof(To) == sizeof(From), "as_type: the types differ in size");
    To to;
    __builtin_memcpy(static_cast<void*>(&to), &from, sizeof to);
    return to;
  }
}
namespace metal {
using ::as_type;
}
