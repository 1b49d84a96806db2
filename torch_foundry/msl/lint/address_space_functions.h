// The functions of <metal_stdlib> for the address-space check; included by address_space_shim.h.
// clang-format off: tables of declarations, one a line
#pragma once

template <class To, class From> To as_type(From); // keyword-like: not in namespace metal

namespace metal {
template <class T> struct msl_value_ { typedef T type; };
template <class T, int N> struct msl_value_<packed_vec<T, N>> { typedef vec<T, N> type; };
template <class T, int S, int... I> struct msl_value_<msl_swizzle<T, S, I...>> { typedef vec<T, sizeof...(I)> type; };
template <class T> using msl_value = typename msl_value_<T>::type;
template <class T> bool is_function_constant_defined(T);

#define MSL_FLOAT1(name)                                                                                               \
  float name(float);                                                                                                   \
  half name(half);                                                                                                     \
  bfloat name(bfloat);                                                                                                 \
  template <class A, class = enable_if_t<msl_is_vector<A>>> msl_value<A> name(A);                                      \
  template <class A, class = enable_if_t<is_integral_v<A>>, class = void> float name(A);
#define MSL_FLOAT2(name)                                                                                               \
  float name(float, float);                                                                                            \
  half name(half, half);                                                                                               \
  bfloat name(bfloat, bfloat);                                                                                         \
  template <class A, class B> msl_vector_of<A, B> name(A, B);
#define MSL_FLOATS                                                                                                     \
  MSL_FLOAT1(exp) MSL_FLOAT1(exp2) MSL_FLOAT1(exp10) MSL_FLOAT1(log) MSL_FLOAT1(log2) MSL_FLOAT1(log10)                \
  MSL_FLOAT1(sqrt) MSL_FLOAT1(rsqrt) MSL_FLOAT1(sin) MSL_FLOAT1(cos) MSL_FLOAT1(tan) MSL_FLOAT1(asin)                  \
  MSL_FLOAT1(acos) MSL_FLOAT1(atan) MSL_FLOAT1(sinh) MSL_FLOAT1(cosh) MSL_FLOAT1(tanh) MSL_FLOAT1(asinh)               \
  MSL_FLOAT1(acosh) MSL_FLOAT1(atanh) MSL_FLOAT1(fabs) MSL_FLOAT1(floor) MSL_FLOAT1(ceil) MSL_FLOAT1(round)            \
  MSL_FLOAT1(rint) MSL_FLOAT1(trunc) MSL_FLOAT1(fract) MSL_FLOAT1(saturate) MSL_FLOAT1(sign) MSL_FLOAT2(pow)           \
  MSL_FLOAT2(powr) MSL_FLOAT2(fmin) MSL_FLOAT2(fmax) MSL_FLOAT2(fmod) MSL_FLOAT2(atan2) MSL_FLOAT2(copysign)           \
  MSL_FLOAT2(step) MSL_FLOAT2(divide) MSL_FLOAT2(fdim)
MSL_FLOATS
namespace precise { MSL_FLOATS }
namespace fast { MSL_FLOATS }
#undef MSL_FLOATS
#undef MSL_FLOAT1
#undef MSL_FLOAT2
#define MSL_SAME1(name) template <class A> msl_value<A> name(A);
#define MSL_SAME2(name)                                                                                                \
  template <class A> enable_if_t<is_arithmetic_v<A>, A> name(A, A);                                                    \
  template <class A, class B> msl_vector_of<A, B> name(A, B);
MSL_SAME1(abs) MSL_SAME1(popcount) MSL_SAME1(clz) MSL_SAME1(ctz) MSL_SAME1(reverse_bits) MSL_SAME1(normalize)
MSL_SAME2(min) MSL_SAME2(max) MSL_SAME2(mulhi) MSL_SAME2(rotate) MSL_SAME2(absdiff) MSL_SAME2(hadd)
#undef MSL_SAME1
#undef MSL_SAME2
template <class A> A fma(A, A, A);
template <class A> A mad24(A, A, A);
template <class A, class B, class C> msl_value<A> clamp(A, B, C);
template <class A, class C> A mix(A, A, C);
template <class A> A smoothstep(A, A, A);
template <class A, class C> A select(A, A, C);
template <class A> A min3(A, A, A);
template <class A> A max3(A, A, A);
template <class A> A median3(A, A, A);
template <class A> A ldexp(A, int);
template <class A, class B> enable_if_t<msl_pair<A, B>::agree, typename msl_pair<A, B>::element> dot(A, B);
template <class A> typename msl_shape<A>::element length(A);
template <class A> typename msl_shape<A>::element length_squared(A);
template <class A, class B> typename msl_shape<A>::element distance(A, B);
template <class T> vec<T, 3> cross(vec<T, 3>, vec<T, 3>);
template <class A> A extract_bits(A, uint, uint);
template <class A> A insert_bits(A, A, uint, uint);
float4 unpack_unorm4x8_to_float(uint);
uint pack_float_to_unorm4x8(float4);
#define MSL_TEST(name)                                                                                                 \
  template <class A> enable_if_t<is_arithmetic_v<A>, bool> name(A);                                                    \
  template <class A> enable_if_t<msl_is_vector<A>, vec<bool, msl_shape<A>::size>> name(A);
MSL_TEST(isnan) MSL_TEST(isinf) MSL_TEST(isfinite) MSL_TEST(isnormal) MSL_TEST(signbit)
#undef MSL_TEST
template <class A> bool any(A);
template <class A> bool all(A);

// ---- synchronization, simdgroups
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
mem_flags operator|(mem_flags, mem_flags);
enum memory_order {
  memory_order_relaxed, memory_order_acquire, memory_order_release, memory_order_acq_rel, memory_order_seq_cst
};
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
void atomic_thread_fence(mem_flags, memory_order = memory_order_relaxed, thread_scope = thread_scope_device);
struct simd_vote {
  typedef ulong vote_t;
  explicit simd_vote(vote_t = 0);
  explicit operator vote_t() const;
  bool all() const;
  bool any() const;
};
simd_vote simd_ballot(bool);
simd_vote simd_active_threads_mask();
bool simd_any(bool);
bool simd_all(bool);
bool simd_is_first();
bool quad_any(bool);
bool quad_all(bool);
#define MSL_REDUCE(name)                                                                                               \
  template <class T> msl_value<T> simd_##name(T);                                                                      \
  template <class T> msl_value<T> quad_##name(T);
MSL_REDUCE(sum) MSL_REDUCE(product) MSL_REDUCE(min) MSL_REDUCE(max) MSL_REDUCE(and) MSL_REDUCE(or) MSL_REDUCE(xor)
MSL_REDUCE(broadcast_first) MSL_REDUCE(prefix_inclusive_sum) MSL_REDUCE(prefix_exclusive_sum)
MSL_REDUCE(prefix_inclusive_product) MSL_REDUCE(prefix_exclusive_product)
#undef MSL_REDUCE
#define MSL_SHUFFLE(name)                                                                                              \
  template <class T> msl_value<T> simd_##name(T, ushort);                                                              \
  template <class T> msl_value<T> quad_##name(T, ushort);
MSL_SHUFFLE(shuffle) MSL_SHUFFLE(shuffle_xor) MSL_SHUFFLE(shuffle_down) MSL_SHUFFLE(shuffle_up) MSL_SHUFFLE(broadcast)
MSL_SHUFFLE(shuffle_rotate_down) MSL_SHUFFLE(shuffle_rotate_up)
#undef MSL_SHUFFLE
template <class T> T simd_shuffle_and_fill_down(T, T, ushort, ushort = 32);
template <class T> T simd_shuffle_and_fill_up(T, T, ushort, ushort = 32);

template <class T, int R = 8, int C = 8> struct simdgroup_matrix {
  simdgroup_matrix();
  explicit simdgroup_matrix(T);
  __private vec<T, 2>& thread_elements();
};
template <class T, int C, int R = C> simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T);
template <class T, int R, int C>
simdgroup_matrix<T, R, C> operator*(simdgroup_matrix<T, R, C>, simdgroup_matrix<T, R, C>);
#define MSL_MEMORY(space)                                                                                              \
  template <class T, class U>                                                                                          \
  void simdgroup_load(__private simdgroup_matrix<T, 8, 8>&, const space U*, ulong = 8, ulong2 = 0, bool = false);      \
  template <class T, class U>                                                                                          \
  void simdgroup_store(simdgroup_matrix<T, 8, 8>, space U*, ulong = 8, ulong2 = 0, bool = false);
MSL_MEMORY(__global) MSL_MEMORY(__local)
#undef MSL_MEMORY
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(__private simdgroup_matrix<D, 8, 8>&, simdgroup_matrix<A, 8, 8>,
                                   simdgroup_matrix<B, 8, 8>, simdgroup_matrix<C, 8, 8>);
template <class D, class A, class B>
void simdgroup_multiply(__private simdgroup_matrix<D, 8, 8>&, simdgroup_matrix<A, 8, 8>, simdgroup_matrix<B, 8, 8>);
typedef simdgroup_matrix<float> simdgroup_float8x8;
typedef simdgroup_matrix<half> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat> simdgroup_bfloat8x8;

// ---- atomics
template <class T> struct atomic { T msl_value; };
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<bool> atomic_bool;
typedef atomic<ulong> atomic_ulong;
#define MSL_ATOMIC(space)                                                                                              \
  template <class T> T atomic_load_explicit(const volatile space atomic<T>*, memory_order);                            \
  template <class T, class U> void atomic_store_explicit(volatile space atomic<T>*, U, memory_order);                  \
  template <class T, class U> T atomic_exchange_explicit(volatile space atomic<T>*, U, memory_order);                  \
  template <class T, class U>                                                                                          \
  bool atomic_compare_exchange_weak_explicit(volatile space atomic<T>*, __private T*, U, memory_order, memory_order);  \
  MSL_FETCH(space, add) MSL_FETCH(space, sub) MSL_FETCH(space, and) MSL_FETCH(space, or) MSL_FETCH(space, xor)         \
  MSL_FETCH(space, min) MSL_FETCH(space, max)
#define MSL_FETCH(space, name)                                                                                         \
  template <class T, class U> T atomic_fetch_##name##_explicit(volatile space atomic<T>*, U, memory_order);
MSL_ATOMIC(__global) MSL_ATOMIC(__local)
#undef MSL_FETCH
#undef MSL_ATOMIC
} // namespace metal
