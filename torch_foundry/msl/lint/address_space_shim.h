// The declarations of <metal_stdlib> for the address-space check: C++ for OpenCL, syntax only, nothing is ever run.
// Objects are passed by value or through generic references, which take device, threadgroup and thread objects;
// objects in constant memory need overloads of their own.
// clang-format off: tables of declarations, one a line
#pragma once
#pragma OPENCL EXTENSION cl_khr_fp16 : enable
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#pragma OPENCL EXTENSION __cl_clang_function_pointers : enable

// clang has OpenCL's types of these names
#define atomic_int msl_atomic_int
#define atomic_uint msl_atomic_uint
#define atomic_long msl_atomic_long
#define atomic_ulong msl_atomic_ulong
#define atomic_float msl_atomic_float

typedef unsigned char uchar, uint8_t;
typedef unsigned short ushort, uint16_t;
typedef unsigned int uint, uint32_t;
typedef unsigned long ulong, uint64_t, size_t, uintptr_t;
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t, ptrdiff_t;

template <class T> __local T& msl_threadgroup();

namespace metal {

// ---- type traits
template <class T, T V> struct integral_constant {
  static constexpr __constant T value = V;
  typedef T value_type;
};
template <bool B> using bool_constant = integral_constant<bool, B>;
typedef bool_constant<true> true_type;
typedef bool_constant<false> false_type;
template <class T> struct msl_bare { typedef T type; };
#define MSL_BARE(space) template <class T> struct msl_bare<space T> : msl_bare<T> {};
MSL_BARE(__global) MSL_BARE(__local) MSL_BARE(__constant) MSL_BARE(__private) MSL_BARE(__generic) MSL_BARE(const)
MSL_BARE(const __global) MSL_BARE(const __local) MSL_BARE(const __constant) MSL_BARE(const __private)
#undef MSL_BARE
template <class T> struct msl_bare<T&> : msl_bare<T> {};
template <class T> struct remove_cv { typedef typename msl_bare<T>::type type; };
template <class T> using remove_cv_t = typename msl_bare<T>::type;
template <class T> using remove_const_t = typename msl_bare<T>::type;
template <class T> struct remove_reference { typedef typename msl_bare<T>::type type; };
template <class T> using remove_reference_t = typename msl_bare<T>::type;
template <class T> struct remove_pointer { typedef T type; };
template <class T> struct remove_pointer<T*> { typedef typename msl_bare<T>::type type; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> using decay_t = typename msl_bare<T>::type;
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> constexpr __constant bool is_same_v = is_same<A, B>::value;
template <bool B, class T = void> struct enable_if {};
template <class T> struct enable_if<true, T> { typedef T type; };
template <bool B, class T = void> using enable_if_t = typename enable_if<B, T>::type;
template <bool B, class T, class F> struct conditional { typedef T type; };
template <class T, class F> struct conditional<false, T, F> { typedef F type; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
template <class... T> using void_t = void;
template <class A, class B> constexpr __constant bool is_convertible_v = __is_convertible_to(A, B);
template <class A, class B> struct is_convertible : bool_constant<__is_convertible_to(A, B)> {};
template <class T> T msl_declval();

struct bfloat {
  ushort bits;
  bfloat() = default;
  template <class T, class = enable_if_t<__is_arithmetic(T)>> constexpr bfloat(T) : bits(0) {}
  operator float() const;
  operator float() const __constant;
};
template <class T> struct is_arithmetic : bool_constant<__is_arithmetic(T)> {};
template <> struct is_arithmetic<bfloat> : true_type {};
template <class T> struct is_floating_point : bool_constant<__is_floating_point(T)> {};
template <> struct is_floating_point<bfloat> : true_type {};
template <class T> struct is_integral : bool_constant<__is_integral(T)> {};
template <class T> struct is_signed : bool_constant<__is_signed(T)> {};
template <class T> struct is_unsigned : bool_constant<__is_unsigned(T)> {};
template <class T> struct is_pointer : false_type {};
template <class T> struct is_pointer<T*> : true_type {};
template <class T> struct is_enum : bool_constant<__is_enum(T)> {};
template <class T> constexpr __constant bool is_arithmetic_v = is_arithmetic<T>::value;
template <class T> constexpr __constant bool is_scalar_v = is_arithmetic<T>::value;
template <class T> constexpr __constant bool is_floating_point_v = is_floating_point<T>::value;
template <class T> constexpr __constant bool is_integral_v = is_integral<T>::value;
template <class T> constexpr __constant bool is_signed_v = is_signed<T>::value;
template <class T> constexpr __constant bool is_unsigned_v = is_unsigned<T>::value;
template <class T> struct make_unsigned { typedef T type; };
template <> struct make_unsigned<char> { typedef uchar type; };
template <> struct make_unsigned<short> { typedef ushort type; };
template <> struct make_unsigned<int> { typedef uint type; };
template <> struct make_unsigned<long> { typedef ulong type; };
template <class T> using make_unsigned_t = typename make_unsigned<T>::type;

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
