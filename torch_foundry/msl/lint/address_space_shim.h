// The declarations of <metal_stdlib> for the address-space check: C++ for OpenCL, syntax only, nothing is ever run.
// Objects are passed by value or through generic references, which take device, threadgroup and thread objects;
// objects in constant memory need overloads of their own.
// clang-format off: tables of declarations, one a line
#pragma once
#include "address_space_traits.h"

template <class T> __local T& msl_threadgroup();

namespace metal {

struct bfloat {
  ushort bits;
  bfloat() = default;
  template <class T, class = enable_if_t<__is_arithmetic(T)>> constexpr bfloat(T) : bits(0) {}
  operator float() const;
  operator float() const __constant;
};
template <class T> struct numeric_limits {
  static constexpr T min() { return T(0); }
  static constexpr T max() { return T(0); }
  static constexpr T lowest() { return T(0); }
  static constexpr T infinity() { return T(0); }
  static constexpr T quiet_NaN() { return T(0); }
  static constexpr T epsilon() { return T(0); }
};

// ---- vectors
template <class T, int N> struct vec;
template <class T, int N> struct packed_vec;
// S: elements of the vector that the swizzle is a view of
template <class T, int S, int... I> struct msl_swizzle {
  T msl_data[S];
  operator vec<T, sizeof...(I)>() const;
  operator vec<T, sizeof...(I)>() const __constant;
  template <class B> msl_swizzle& operator=(B b);
  template <class B> msl_swizzle& operator+=(B b);
  template <class B> msl_swizzle& operator-=(B b);
  template <class B> msl_swizzle& operator*=(B b);
  template <class B> msl_swizzle& operator/=(B b);
  T operator[](int i) const;
  T operator[](int i) const __constant;
};

template <class T> struct msl_shape {
  static constexpr __constant int size = 0;
  typedef T element;
};
#define MSL_SHAPE(type, n)                                                                                             \
  {                                                                                                                    \
    static constexpr __constant int size = n;                                                                          \
    typedef T element;                                                                                                 \
  };
template <class T, int N> struct msl_shape<vec<T, N>> MSL_SHAPE(vec, N)
template <class T, int N> struct msl_shape<packed_vec<T, N>> MSL_SHAPE(packed_vec, N)
template <class T, int S, int... I> struct msl_shape<msl_swizzle<T, S, I...>> MSL_SHAPE(msl_swizzle, sizeof...(I))
#undef MSL_SHAPE
template <class T> constexpr __constant bool msl_is_vector = msl_shape<T>::size > 0;

#define MSL_W2(a, b) msl_swizzle<T, S, a, b>
#define MSL_W3(a, b, c) msl_swizzle<T, S, a, b, c>
#define MSL_W4(a, b, c, d) msl_swizzle<T, S, a, b, c, d>
#define MSL_NAMES2                                                                                                     \
  MSL_W2(0, 0) xx; MSL_W2(0, 1) xy, rg; MSL_W2(1, 0) yx; MSL_W2(1, 1) yy;                                              \
  MSL_W3(0, 0, 0) xxx; MSL_W4(0, 1, 0, 1) xyxy; MSL_W4(0, 0, 1, 1) xxyy; MSL_W4(0, 0, 0, 0) xxxx;
#define MSL_NAMES3                                                                                                     \
  MSL_NAMES2 MSL_W2(0, 2) xz; MSL_W2(1, 2) yz, gb; MSL_W2(2, 0) zx; MSL_W2(2, 1) zy; MSL_W2(2, 2) zz;                  \
  MSL_W3(0, 1, 2) xyz, rgb; MSL_W3(1, 2, 0) yzx; MSL_W3(2, 0, 1) zxy; MSL_W3(2, 1, 0) zyx;
#define MSL_NAMES4                                                                                                     \
  MSL_NAMES3 MSL_W2(0, 3) xw; MSL_W2(1, 3) yw; MSL_W2(2, 3) zw, ba; MSL_W2(3, 2) wz; MSL_W2(3, 3) ww;                  \
  MSL_W3(1, 2, 3) yzw; MSL_W3(0, 1, 3) xyw; MSL_W4(0, 1, 2, 3) xyzw, rgba; MSL_W4(3, 2, 1, 0) wzyx;                    \
  MSL_W4(2, 3, 0, 1) zwxy; MSL_W4(1, 0, 3, 2) yxwz;
template <class T, int N, int S> struct msl_fields;
template <class T, int S> struct msl_fields<T, 2, S> {
  union { T msl_data[S]; struct { T x, y; }; struct { T r, g; }; MSL_NAMES2 };
};
template <class T, int S> struct msl_fields<T, 3, S> {
  union { T msl_data[S]; struct { T x, y, z; }; struct { T r, g, b; }; MSL_NAMES3 };
};
template <class T, int S> struct msl_fields<T, 4, S> {
  union { T msl_data[S]; struct { T x, y, z, w; }; struct { T r, g, b, a; }; MSL_NAMES4 };
};

// A vector takes a scalar implicitly and a vector of another element type explicitly only, as in Metal.
#define MSL_VECTOR(name)                                                                                               \
  name();                                                                                                              \
  name(const name&);                                                                                                   \
  name(const __constant name&);                                                                                        \
  name& operator=(const name&);                                                                                        \
  __global name& operator=(name) __global;                                                                             \
  __local name& operator=(name) __local;                                                                               \
  template <class U, class = enable_if_t<is_arithmetic_v<U>>> name(U scalar);                                          \
  template <class U, class = enable_if_t<!is_same_v<U, T>>> explicit name(vec<U, N>);                                  \
  template <class U, int S, int... I, class = enable_if_t<sizeof...(I) == N && !is_same_v<U, T>>>                      \
  explicit name(msl_swizzle<U, S, I...>);                                                                              \
  template <class A, class B, class... C> name(A, B, C...);                                                            \
  T& operator[](int);                                                                                                  \
  __global T& operator[](int) __global;                                                                                \
  __local T& operator[](int) __local;                                                                                  \
  T operator[](int) const;                                                                                             \
  T operator[](int) const __global;                                                                                    \
  T operator[](int) const __local;                                                                                     \
  T operator[](int) const __constant;                                                                                  \
  MSL_UPDATE(name, +) MSL_UPDATE(name, -) MSL_UPDATE(name, *) MSL_UPDATE(name, /) MSL_UPDATE(name, %)                  \
  MSL_UPDATE(name, &) MSL_UPDATE(name, |) MSL_UPDATE(name, ^) MSL_UPDATE(name, <<) MSL_UPDATE(name, >>)
#define MSL_UPDATE(name, op) template <class B> name& operator op##=(B);
template <class T, int N> struct alignas(sizeof(T) * (N == 2 ? 2 : 4)) vec : msl_fields<T, N, N == 2 ? 2 : 4> {
  typedef T value_type;
  vec(packed_vec<T, N>);
  template <class U, class = enable_if_t<!is_same_v<U, T>>, class = void> explicit vec(packed_vec<U, N>);
  MSL_VECTOR(vec)
};
template <class T, int N> struct packed_vec : msl_fields<T, N, N> {
  packed_vec(vec<T, N>);
  MSL_VECTOR(packed_vec)
};
#undef MSL_UPDATE
#undef MSL_VECTOR

template <class A, class B> struct msl_pair {
  static constexpr __constant int size = msl_is_vector<A> ? msl_shape<A>::size : msl_shape<B>::size;
  typedef conditional_t<msl_is_vector<A>, typename msl_shape<A>::element, typename msl_shape<B>::element> element;
  static constexpr __constant bool agree =
      (msl_is_vector<A> && msl_is_vector<B>)
          ? msl_shape<A>::size == msl_shape<B>::size &&
                is_same_v<typename msl_shape<A>::element, typename msl_shape<B>::element>
          : (msl_is_vector<A> || msl_is_vector<B>) && is_arithmetic_v<typename msl_shape<A>::element> &&
                is_arithmetic_v<typename msl_shape<B>::element>;
};
template <class A, class B>
using msl_vector_of = enable_if_t<msl_pair<A, B>::agree, vec<typename msl_pair<A, B>::element, msl_pair<A, B>::size>>;
template <class A, class B> using msl_bools_of = enable_if_t<msl_pair<A, B>::agree, vec<bool, msl_pair<A, B>::size>>;
#define MSL_OP(op) template <class A, class B> msl_vector_of<A, B> operator op(A, B);
MSL_OP(+) MSL_OP(-) MSL_OP(*) MSL_OP(/) MSL_OP(%) MSL_OP(&) MSL_OP(|) MSL_OP(^) MSL_OP(<<) MSL_OP(>>)
#undef MSL_OP
#define MSL_OP(op) template <class A, class B> msl_bools_of<A, B> operator op(A, B);
MSL_OP(==) MSL_OP(!=) MSL_OP(<) MSL_OP(<=) MSL_OP(>) MSL_OP(>=) MSL_OP(&&) MSL_OP(||)
#undef MSL_OP
template <class A> msl_vector_of<A, A> operator-(A);
template <class A> msl_vector_of<A, A> operator~(A);
template <class A> msl_bools_of<A, A> operator!(A);

#define MSL_TYPES(t)                                                                                                   \
  typedef vec<t, 2> t##2;                                                                                              \
  typedef vec<t, 3> t##3;                                                                                              \
  typedef vec<t, 4> t##4;                                                                                              \
  typedef packed_vec<t, 2> packed_##t##2;                                                                              \
  typedef packed_vec<t, 3> packed_##t##3;                                                                              \
  typedef packed_vec<t, 4> packed_##t##4;
MSL_TYPES(bool) MSL_TYPES(char) MSL_TYPES(uchar) MSL_TYPES(short) MSL_TYPES(ushort) MSL_TYPES(int) MSL_TYPES(uint)
MSL_TYPES(long) MSL_TYPES(ulong) MSL_TYPES(half) MSL_TYPES(float) MSL_TYPES(bfloat)
#undef MSL_TYPES

template <class T, int C, int R> struct matrix {
  vec<T, R> columns[C];
  matrix();
  matrix(const matrix&);
  matrix(const __constant matrix&);
  matrix& operator=(const matrix&);
  matrix& operator=(const __constant matrix&);
  explicit matrix(T diagonal);
  template <class A, class B, class... D> matrix(A, B, D...);
  template <class U> explicit matrix(matrix<U, C, R>);
  vec<T, R>& operator[](int);
  __global vec<T, R>& operator[](int) __global;
  __local vec<T, R>& operator[](int) __local;
  vec<T, R> operator[](int) const;
  vec<T, R> operator[](int) const __constant;
};
template <class T, int C, int R> vec<T, R> operator*(matrix<T, C, R>, vec<T, C>);
template <class T, int C, int R> vec<T, C> operator*(vec<T, R>, matrix<T, C, R>);
template <class T, int C, int R> matrix<T, C, R> operator*(matrix<T, C, R>, T);
template <class T, int C, int R> matrix<T, C, R> operator+(matrix<T, C, R>, matrix<T, C, R>);
#define MSL_TYPES(t)                                                                                                   \
  typedef matrix<t, 2, 2> t##2x2;                                                                                      \
  typedef matrix<t, 3, 3> t##3x3;                                                                                      \
  typedef matrix<t, 4, 4> t##4x4;                                                                                      \
  typedef matrix<t, 2, 4> t##2x4;                                                                                      \
  typedef matrix<t, 4, 2> t##4x2;                                                                                      \
  typedef matrix<t, 3, 4> t##3x4;                                                                                      \
  typedef matrix<t, 4, 3> t##4x3;
MSL_TYPES(half) MSL_TYPES(float)
#undef MSL_TYPES

template <class T, size_t N> struct array {
  T msl_elements[N];
  T& operator[](size_t);
  __global T& operator[](size_t) __global;
  __local T& operator[](size_t) __local;
  const T& operator[](size_t) const;
  const __constant T& operator[](size_t) const __constant;
};

} // namespace metal

#include "address_space_functions.h"

// Apple's types are global, too
using metal::bfloat;
#define MSL_TYPES(t)                                                                                                   \
  using metal::t##2;                                                                                                   \
  using metal::t##3;                                                                                                   \
  using metal::t##4;                                                                                                   \
  using metal::packed_##t##2;                                                                                          \
  using metal::packed_##t##3;                                                                                          \
  using metal::packed_##t##4;
MSL_TYPES(bool) MSL_TYPES(char) MSL_TYPES(uchar) MSL_TYPES(short) MSL_TYPES(ushort) MSL_TYPES(int) MSL_TYPES(uint)
MSL_TYPES(long) MSL_TYPES(ulong) MSL_TYPES(half) MSL_TYPES(float) MSL_TYPES(bfloat)
#undef MSL_TYPES
