// Type traits of <metal_stdlib> in C++ for OpenCL, and the names of integers: for address_space_shim.h, which has only
// declarations, and for tools/agx/msl.h, which has bodies.
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

namespace metal {

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

struct bfloat;
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

} // namespace metal
