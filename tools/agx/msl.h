// <metal_stdlib> with bodies, as far as the kernels call it: C++ for OpenCL, which clang compiles for spir64.
// Statistics of the machine code are the aim: functions are the instructions that Apple's GPU has for them, not exact
// to the last bit.
// clang-format off: tables of functions, one a line
#pragma once
#include "address_space_traits.h"

#define AGX inline __attribute__((always_inline))

// OpenCL's functions, by the names that the SPIR-V translator knows
uint get_sub_group_local_id();
uint get_sub_group_id();
uint get_num_sub_groups();
size_t get_local_id(uint);
size_t get_local_size(uint);
size_t get_group_id(uint);
size_t get_global_id(uint);
void barrier(uint);
float sub_group_reduce_add(float);
half sub_group_reduce_add(half);
int sub_group_reduce_add(int);
uint sub_group_reduce_add(uint);
float sub_group_reduce_max(float);
half sub_group_reduce_max(half);
int sub_group_reduce_max(int);
uint sub_group_reduce_max(uint);
float sub_group_reduce_min(float);
half sub_group_reduce_min(half);
int sub_group_reduce_min(int);
uint sub_group_reduce_min(uint);
float sub_group_broadcast(float, uint);
half sub_group_broadcast(half, uint);
int sub_group_broadcast(int, uint);
uint sub_group_broadcast(uint, uint);
float sub_group_shuffle(float, uint);
half sub_group_shuffle(half, uint);
int sub_group_shuffle(int, uint);
uint sub_group_shuffle(uint, uint);
float sub_group_scan_exclusive_add(float);
uint sub_group_scan_exclusive_add(uint);
float sub_group_scan_inclusive_add(float);
uint sub_group_non_uniform_reduce_or(uint);
uint sub_group_scan_inclusive_add(uint);
int sub_group_any(int);
int sub_group_all(int);
typedef uint msl_u4 __attribute__((ext_vector_type(4)));
msl_u4 sub_group_ballot(int);
// those that metal has, too, under other names
#define MSL_AS(label) __asm(label)
half ocl_fma(half, half, half) MSL_AS("_Z3fmaDhDhDh");
float ocl_fabs(float) MSL_AS("_Z4fabsf");
half ocl_fabs(half) MSL_AS("_Z4fabsDh");
float ocl_floor(float) MSL_AS("_Z5floorf");
float ocl_ceil(float) MSL_AS("_Z4ceilf");
float ocl_rint(float) MSL_AS("_Z4rintf");
float ocl_trunc(float) MSL_AS("_Z5truncf");
float ocl_fmin(float, float) MSL_AS("_Z4fminff");
float ocl_fmax(float, float) MSL_AS("_Z4fmaxff");
half ocl_fmin(half, half) MSL_AS("_Z4fminDhDh");
half ocl_fmax(half, half) MSL_AS("_Z4fmaxDhDh");
float ocl_copysign(float, float) MSL_AS("_Z8copysignff");
uint ocl_popcount(uint) MSL_AS("_Z8popcountj");
uint ocl_clz(uint) MSL_AS("_Z3clzj");
uint ocl_ctz(uint) MSL_AS("_Z3ctzj");
uint ocl_mulhi(uint, uint) MSL_AS("_Z6mul_hijj");
#define MSL_FETCH(name, n)                                                                                             \
  int ocl_atomic_##name(volatile __global int*, int) MSL_AS("_Z" #n "atomic_" #name "PU3AS1Vii");                      \
  int ocl_atomic_##name(volatile __local int*, int) MSL_AS("_Z" #n "atomic_" #name "PU3AS3Vii");
MSL_FETCH(add, 10) MSL_FETCH(or, 9) MSL_FETCH(max, 10) MSL_FETCH(min, 10)
#undef MSL_FETCH
float native_exp(float);
float native_exp2(float);
float native_log(float);
float native_log2(float);
float native_sin(float);
float native_cos(float);
float native_rsqrt(float);
float native_sqrt(float);

// OpenCL has no variables of a threadgroup in templates: number N lies at an address of its own.
template <class T, int N> AGX __local T& msl_threadgroup() { return *(__local T*)(ulong)(N * 8192 + 64); }

namespace metal {

inline ushort msl_bfloat_bits(float f);
struct bfloat {
  ushort bits;
  bfloat() = default;
  template <class T, class = enable_if_t<__is_arithmetic(T)>> bfloat(T v) : bits(msl_bfloat_bits(float(v))) {}
  operator float() const;
  operator float() const __constant;
};
template <class T> struct numeric_limits {
  static constexpr T max() { return ~T(0); } // of an unsigned type
};
template <> struct numeric_limits<int> {
  static constexpr int max() { return 0x7fffffff; }
};
#define MSL_LIMITS(t, greatest)                                                                                        \
  template <> struct numeric_limits<t> {                                                                               \
    static constexpr t max() { return t(greatest); }                                                                   \
    static constexpr t lowest() { return t(-greatest); }                                                               \
    static constexpr t infinity() { return t(__builtin_inff()); }                                                      \
    static constexpr t quiet_NaN() { return t(__builtin_nanf("")); }                                                   \
  };
MSL_LIMITS(float, 3.402823466e38f) MSL_LIMITS(half, 65504.0f)
#undef MSL_LIMITS

// ---- vectors
template <class T, int N> struct vec;
template <class T, int N> struct packed_vec;
template <class T, int S, int... I> struct msl_swizzle {
  T msl_data[S];
  AGX operator vec<T, sizeof...(I)>() const {
    vec<T, sizeof...(I)> r;
    int k = 0;
    ((r.msl_data[k++] = msl_data[I]), ...);
    return r;
  }
  template <class B> AGX msl_swizzle& operator=(B b) {
    int k = 0;
    const vec<T, sizeof...(I)> v = b;
    ((msl_data[I] = v.msl_data[k++]), ...);
    return *this;
  }
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
template <class T, int N, int S> struct msl_fields;
template <class T, int S> struct msl_fields<T, 2, S> {
  union { T msl_data[S]; struct { T x, y; }; MSL_W2(0, 1) xy; MSL_W2(1, 0) yx; };
};
template <class T, int S> struct msl_fields<T, 3, S> {
  union { T msl_data[S]; struct { T x, y, z; }; MSL_W2(0, 1) xy; MSL_W2(1, 2) yz; };
};
template <class T, int S> struct msl_fields<T, 4, S> {
  union { T msl_data[S]; struct { T x, y, z, w; }; MSL_W2(0, 1) xy; MSL_W2(2, 3) zw; MSL_W2(0, 2) xz; MSL_W2(1, 3) yw; };
};

#define MSL_EACH _Pragma("unroll") for (int i = 0; i < N; ++i)
#define MSL_VECTOR(name)                                                                                               \
  AGX name() {}                                                                                                        \
  name(const name&) = default;                                                                                         \
  AGX name(const __constant name& o) { MSL_EACH this->msl_data[i] = o.msl_data[i]; }                                   \
  name& operator=(const name&) = default;                                                                              \
  AGX void operator=(name o) __global { MSL_EACH this->msl_data[i] = o.msl_data[i]; }                                  \
  AGX void operator=(name o) __local { MSL_EACH this->msl_data[i] = o.msl_data[i]; }                                   \
  template <class U, class = enable_if_t<is_arithmetic_v<U>>> AGX name(U s) { MSL_EACH this->msl_data[i] = T(s); }     \
  template <class U, class = enable_if_t<!is_same_v<U, T>>> AGX explicit name(vec<U, N> o) {                           \
    MSL_EACH this->msl_data[i] = T(o.msl_data[i]);                                                                     \
  }                                                                                                                    \
  template <class A, class B, class... C> AGX name(A a, B b, C... c) {                                                 \
    int k = 0;                                                                                                         \
    msl_put(k, a), msl_put(k, b), (msl_put(k, c), ...);                                                                \
  }                                                                                                                    \
  template <class A> AGX void msl_put(__private int& k, A a) {                                                         \
    if constexpr (msl_is_vector<A>) {                                                                                  \
      _Pragma("unroll") for (int j = 0; j < msl_shape<A>::size; ++j) this->msl_data[k++] = T(a.msl_data[j]);           \
    } else                                                                                                             \
      this->msl_data[k++] = T(a);                                                                                      \
  }                                                                                                                    \
  AGX T& operator[](int i) { return this->msl_data[i]; }                                                               \
  AGX T operator[](int i) const { return this->msl_data[i]; }                                                          \
  AGX T operator[](int i) const __constant { return this->msl_data[i]; }                                               \
  MSL_UPDATE(name, +) MSL_UPDATE(name, -) MSL_UPDATE(name, *) MSL_UPDATE(name, /) MSL_UPDATE(name, &)                  \
  MSL_UPDATE(name, |) MSL_UPDATE(name, ^) MSL_UPDATE(name, <<) MSL_UPDATE(name, >>)
#define MSL_UPDATE(name, op) template <class B> AGX name& operator op##=(B b) { return *this = *this op b; }
template <class T, int N> struct alignas(sizeof(T) * (N == 2 ? 2 : 4)) vec : msl_fields<T, N, N == 2 ? 2 : 4> {
  typedef T value_type;
  AGX vec(packed_vec<T, N> o) { MSL_EACH this->msl_data[i] = o.msl_data[i]; }
  MSL_VECTOR(vec)
};
template <class T, int N> struct packed_vec : msl_fields<T, N, N> {
  AGX packed_vec(vec<T, N> o) { MSL_EACH this->msl_data[i] = o.msl_data[i]; }
  AGX packed_vec(const __global packed_vec& o) { // one load, wherever an element may lie
    typedef T msl_whole __attribute__((ext_vector_type(N), aligned(sizeof(T))));
    const msl_whole v = *(const __global msl_whole*)&o;
    MSL_EACH this->msl_data[i] = v[i];
  }
  MSL_VECTOR(packed_vec)
};
#undef MSL_UPDATE
#undef MSL_VECTOR

template <class A, class B> struct msl_pair {
  static constexpr __constant int size = msl_is_vector<A> ? msl_shape<A>::size : msl_shape<B>::size;
  typedef conditional_t<msl_is_vector<A>, typename msl_shape<A>::element, typename msl_shape<B>::element> element;
  static constexpr __constant bool agree = msl_is_vector<A> || msl_is_vector<B>;
};
template <class A, class B>
using msl_vector_of = enable_if_t<msl_pair<A, B>::agree, vec<typename msl_pair<A, B>::element, msl_pair<A, B>::size>>;
template <class A, class B> using msl_bools_of = enable_if_t<msl_pair<A, B>::agree, vec<bool, msl_pair<A, B>::size>>;
#define MSL_OP(op, result)                                                                                             \
  template <class A, class B> AGX result<A, B> operator op(A a, B b) {                                                 \
    typedef msl_vector_of<A, B> V;                                                                                     \
    constexpr int N = msl_pair<A, B>::size;                                                                            \
    const V l = a, m = b;                                                                                              \
    result<A, B> r;                                                                                                    \
    MSL_EACH r.msl_data[i] = l.msl_data[i] op m.msl_data[i];                                                           \
    return r;                                                                                                          \
  }
MSL_OP(+, msl_vector_of) MSL_OP(-, msl_vector_of) MSL_OP(*, msl_vector_of) MSL_OP(/, msl_vector_of)
MSL_OP(%, msl_vector_of) MSL_OP(&, msl_vector_of) MSL_OP(|, msl_vector_of) MSL_OP(^, msl_vector_of)
MSL_OP(<<, msl_vector_of) MSL_OP(>>, msl_vector_of)
MSL_OP(==, msl_bools_of) MSL_OP(!=, msl_bools_of) MSL_OP(<, msl_bools_of) MSL_OP(<=, msl_bools_of)
MSL_OP(>, msl_bools_of) MSL_OP(>=, msl_bools_of)
#undef MSL_OP
template <class A> AGX msl_vector_of<A, A> operator-(A a) { return A(0) - a; }

#define MSL_TYPES(t)                                                                                                   \
  typedef vec<t, 2> t##2;                                                                                              \
  typedef vec<t, 3> t##3;                                                                                              \
  typedef vec<t, 4> t##4;                                                                                              \
  typedef packed_vec<t, 2> packed_##t##2;                                                                              \
  typedef packed_vec<t, 3> packed_##t##3;                                                                              \
  typedef packed_vec<t, 4> packed_##t##4;
#define MSL_ALL_TYPES                                                                                                  \
  MSL_TYPES(bool) MSL_TYPES(char) MSL_TYPES(uchar) MSL_TYPES(short) MSL_TYPES(ushort) MSL_TYPES(int) MSL_TYPES(uint)   \
  MSL_TYPES(long) MSL_TYPES(ulong) MSL_TYPES(half) MSL_TYPES(float) MSL_TYPES(bfloat)
MSL_ALL_TYPES
#undef MSL_TYPES

template <class T, size_t N> struct array {
  T msl_elements[N];
  AGX T& operator[](size_t i) { return msl_elements[i]; }
  AGX const T& operator[](size_t i) const { return msl_elements[i]; }
};
template <class T> struct msl_value_ { typedef T type; };
template <class T, int N> struct msl_value_<packed_vec<T, N>> { typedef vec<T, N> type; };
template <class T, int S, int... I> struct msl_value_<msl_swizzle<T, S, I...>> { typedef vec<T, sizeof...(I)> type; };
template <class T> using msl_value = typename msl_value_<T>::type;
} // namespace metal

// ---- bits: by way of OpenCL's own vectors, which bitcast
using metal::bfloat;
typedef half msl_h2 __attribute__((ext_vector_type(2)));
typedef ushort msl_us2 __attribute__((ext_vector_type(2)));
template <class To, class From> struct msl_as {
  static AGX To run(From from) { return __builtin_bit_cast(To, from); }
};
template <> struct msl_as<metal::vec<half, 2>, uint> {
  static AGX metal::vec<half, 2> run(uint from) {
    const msl_h2 v = __builtin_bit_cast(msl_h2, from);
    return metal::vec<half, 2>(v.x, v.y);
  }
};
template <> struct msl_as<metal::vec<ushort, 2>, uint> {
  static AGX metal::vec<ushort, 2> run(uint from) {
    const msl_us2 v = __builtin_bit_cast(msl_us2, from);
    return metal::vec<ushort, 2>(v.x, v.y);
  }
};
template <> struct msl_as<metal::vec<bfloat, 2>, uint> {
  static AGX metal::vec<bfloat, 2> run(uint from) {
    const msl_us2 v = __builtin_bit_cast(msl_us2, from);
    metal::vec<bfloat, 2> r;
    r.x.bits = v.x, r.y.bits = v.y;
    return r;
  }
};
template <> struct msl_as<uint, metal::vec<bfloat, 2>> {
  static AGX uint run(metal::vec<bfloat, 2> from) {
    const msl_us2 v = {from.x.bits, from.y.bits};
    return __builtin_bit_cast(uint, v);
  }
};
template <> struct msl_as<uint, metal::vec<half, 2>> {
  static AGX uint run(metal::vec<half, 2> from) {
    const msl_h2 v = {from.x, from.y};
    return __builtin_bit_cast(uint, v);
  }
};
template <> struct msl_as<uint, metal::vec<ushort, 2>> {
  static AGX uint run(metal::vec<ushort, 2> from) {
    const msl_us2 v = {from.x, from.y};
    return __builtin_bit_cast(uint, v);
  }
};
template <class To, class From> AGX To as_type(From from) { return msl_as<To, From>::run(from); }

namespace metal {
AGX bfloat::operator float() const { return as_type<float>(uint(bits) << 16); }
AGX bfloat::operator float() const __constant { return as_type<float>(uint(bits) << 16); }
AGX ushort msl_bfloat_bits(float f) {
  const uint u = as_type<uint>(f);
  return ushort((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// ---- functions
#define MSL_FLOAT1(name, body)                                                                                         \
  AGX float name(float x) { return body; }                                                                             \
  AGX half name(half h) { const float x = h; return half(body); }                                                      \
  template <class T, int N> AGX vec<T, N> name(vec<T, N> v) {                                                          \
    vec<T, N> r;                                                                                                       \
    MSL_EACH r.msl_data[i] = name(v.msl_data[i]);                                                                      \
    return r;                                                                                                          \
  }
#define MSL_FLOATS                                                                                                     \
  MSL_FLOAT1(exp, ::native_exp(x)) MSL_FLOAT1(exp2, ::native_exp2(x)) MSL_FLOAT1(log, ::native_log(x))                 \
  MSL_FLOAT1(log2, ::native_log2(x)) MSL_FLOAT1(sin, ::native_sin(x)) MSL_FLOAT1(cos, ::native_cos(x))                 \
  MSL_FLOAT1(sqrt, ::native_sqrt(x)) MSL_FLOAT1(rsqrt, ::native_rsqrt(x)) MSL_FLOAT1(fabs, ocl_fabs(x))                  \
  MSL_FLOAT1(floor, ocl_floor(x)) MSL_FLOAT1(ceil, ocl_ceil(x)) MSL_FLOAT1(rint, ocl_rint(x))                                \
  MSL_FLOAT1(trunc, ocl_trunc(x))                                                                                        \
  MSL_FLOAT1(tanh, 1.0f - 2.0f / (::native_exp(2.0f * x) + 1.0f))                                                      \
  AGX float pow(float x, float y) { return ::native_exp2(y * ::native_log2(x)); }                                      \
  AGX float powr(float x, float y) { return ::native_exp2(y * ::native_log2(x)); }                                     \
  AGX float copysign(float x, float y) { return ocl_copysign(x, y); }                                                    \
  AGX float fmin(float x, float y) { return ocl_fmin(x, y); }                                                            \
  AGX float fmax(float x, float y) { return ocl_fmax(x, y); }                                                            \
  AGX float divide(float x, float y) { return x / y; }
MSL_FLOATS
namespace precise { MSL_FLOATS }
namespace fast { MSL_FLOATS }
#undef MSL_FLOATS
AGX float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
AGX half fma(half a, half b, half c) { return ocl_fma(a, b, c); }
template <class T, int N> AGX vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
  vec<T, N> r;
  MSL_EACH r.msl_data[i] = fma(a.msl_data[i], b.msl_data[i], c.msl_data[i]);
  return r;
}
#define MSL_SCALARS(DO) DO(int) DO(uint) DO(short) DO(ushort) DO(long) DO(ulong) DO(char) DO(uchar)
#define MSL_MINMAX(t)                                                                                                  \
  AGX t min(t a, t b) { return a < b ? a : b; }                                                                        \
  AGX t max(t a, t b) { return a > b ? a : b; }
MSL_SCALARS(MSL_MINMAX)
#undef MSL_MINMAX
AGX float min(float a, float b) { return ocl_fmin(a, b); }
AGX float max(float a, float b) { return ocl_fmax(a, b); }
AGX half min(half a, half b) { return ocl_fmin(a, b); }
AGX half max(half a, half b) { return ocl_fmax(a, b); }
template <class T, int N> AGX vec<T, N> min(vec<T, N> a, vec<T, N> b) {
  vec<T, N> r;
  MSL_EACH r.msl_data[i] = min(a.msl_data[i], b.msl_data[i]);
  return r;
}
template <class T, int N> AGX vec<T, N> max(vec<T, N> a, vec<T, N> b) {
  vec<T, N> r;
  MSL_EACH r.msl_data[i] = max(a.msl_data[i], b.msl_data[i]);
  return r;
}
template <class A, class B, class C> AGX A clamp(A x, B lo, C hi) { return min(max(x, A(lo)), A(hi)); }
template <class A> AGX A select(A a, A b, bool c) { return c ? b : a; }
AGX int abs(int x) { return x < 0 ? -x : x; }
AGX float abs(float x) { return ocl_fabs(x); }
AGX uint popcount(uint x) { return ocl_popcount(x); }
AGX uint clz(uint x) { return ocl_clz(x); }
AGX uint ctz(uint x) { return ocl_ctz(x); }
AGX uint mulhi(uint a, uint b) { return ocl_mulhi(a, b); }
AGX uint extract_bits(uint x, uint at, uint n) { return x >> at & ((1u << n) - 1); }
AGX bool isnan(float x) { return x != x; }
AGX bool isinf(float x) { return ocl_fabs(x) == __builtin_inff(); }
AGX bool isfinite(float x) { return ocl_fabs(x) < __builtin_inff(); }
template <class T, int N> AGX T dot(vec<T, N> a, vec<T, N> b) {
  T s = a.msl_data[0] * b.msl_data[0];
  for (int i = 1; i < N; ++i) s = fma(a.msl_data[i], b.msl_data[i], s);
  return s;
}
template <class T> AGX bool is_function_constant_defined(T) { return true; }

// ---- synchronization, simdgroups
enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4 };
AGX mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
enum memory_order {
  memory_order_relaxed, memory_order_acquire, memory_order_release, memory_order_acq_rel, memory_order_seq_cst
};
enum thread_scope { thread_scope_thread, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device };
AGX void threadgroup_barrier(mem_flags f) {
  ::barrier(f == mem_flags::mem_threadgroup || f == mem_flags::mem_none ? 1 : f == mem_flags::mem_device ? 2 : 3);
}
AGX void simdgroup_barrier(mem_flags) {}
struct simd_vote {
  typedef ulong vote_t;
  vote_t votes;
  AGX explicit simd_vote(vote_t v = 0) : votes(v) {}
  AGX explicit operator vote_t() const { return votes; }
};
AGX simd_vote simd_ballot(bool b) { return simd_vote(::sub_group_ballot(b).x); }
AGX bool simd_any(bool b) { return ::sub_group_any(b); }
AGX bool simd_all(bool b) { return ::sub_group_all(b); }
#define MSL_REDUCE(name, call)                                                                                         \
  AGX float simd_##name(float x) { return ::call(x); }                                                                 \
  AGX half simd_##name(half x) { return ::call(x); }                                                                   \
  AGX int simd_##name(int x) { return ::call(x); }                                                                     \
  AGX uint simd_##name(uint x) { return ::call(x); }                                                                   \
  template <class T, int N> AGX vec<T, N> simd_##name(vec<T, N> v) {                                                   \
    vec<T, N> r;                                                                                                       \
    MSL_EACH r.msl_data[i] = simd_##name(v.msl_data[i]);                                                               \
    return r;                                                                                                          \
  }
MSL_REDUCE(sum, sub_group_reduce_add) MSL_REDUCE(max, sub_group_reduce_max) MSL_REDUCE(min, sub_group_reduce_min)
#undef MSL_REDUCE
AGX float simd_prefix_exclusive_sum(float x) { return ::sub_group_scan_exclusive_add(x); }
AGX uint simd_or(uint x) { return ::sub_group_non_uniform_reduce_or(x); }
AGX uint simd_prefix_exclusive_sum(uint x) { return ::sub_group_scan_exclusive_add(x); }
AGX float simd_prefix_inclusive_sum(float x) { return ::sub_group_scan_inclusive_add(x); }
AGX uint simd_prefix_inclusive_sum(uint x) { return ::sub_group_scan_inclusive_add(x); }
// Of any lane by any lane. Mesa makes four instructions of it, as one gives a quad the lanes that all of it asks for.
// What Apple's compiler makes is not known: for costs a shuffle is one instruction, whose results may be wrong.
#ifdef MSL_GENERAL_SHUFFLES
#define MSL_SHUFFLE ::sub_group_shuffle
#else
#define MSL_SHUFFLE ::sub_group_broadcast
#endif
template <class T> AGX msl_value<T> simd_shuffle(T v, ushort lane) {
  if constexpr (msl_is_vector<T>) {
    constexpr int N = msl_shape<T>::size;
    msl_value<T> r;
    MSL_EACH r.msl_data[i] = MSL_SHUFFLE(v.msl_data[i], lane);
    return r;
  } else
    return MSL_SHUFFLE(v, lane);
}
template <class T> AGX msl_value<T> simd_broadcast(T v, ushort lane) {
  if constexpr (msl_is_vector<T>) {
    constexpr int N = msl_shape<T>::size;
    msl_value<T> r;
    MSL_EACH r.msl_data[i] = ::sub_group_broadcast(v.msl_data[i], lane);
    return r;
  } else
    return ::sub_group_broadcast(v, lane);
}
template <class T> AGX msl_value<T> simd_shuffle_xor(T v, ushort m) {
  return simd_shuffle(v, ushort(::get_sub_group_local_id() ^ m));
}
template <class T> AGX msl_value<T> simd_shuffle_up(T v, ushort m) {
  return simd_shuffle(v, ushort(::get_sub_group_local_id() - m));
}
template <class T> AGX msl_value<T> simd_shuffle_down(T v, ushort m) {
  return simd_shuffle(v, ushort(::get_sub_group_local_id() + m));
}

// ---- matrices: two elements a lane, as in the hardware. A product is two fma here, for registers and occupancy only:
// Mesa has no instruction for it; G13's simd_matrix_fmadd takes some 18 cycles.
template <class T, int R = 8, int C = 8> struct simdgroup_matrix {
  vec<T, 2> e;
  AGX simdgroup_matrix() {}
  AGX simdgroup_matrix(const simdgroup_matrix& o) { e.x = o.e.x, e.y = o.e.y; }
  AGX explicit simdgroup_matrix(T v) : e(v) {}
  AGX simdgroup_matrix& operator=(const simdgroup_matrix& o) {
    e.x = o.e.x, e.y = o.e.y;
    return *this;
  }
  AGX vec<T, 2>& thread_elements() { return e; }
};
template <class T, int C, int R = C> AGX simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) {
  return simdgroup_matrix<T, R, C>(v);
}
AGX uint msl_row() { return ::get_sub_group_local_id() / 4; }
AGX uint msl_column() { return ::get_sub_group_local_id() % 4 * 2; }
#define MSL_MEMORY(space)                                                                                              \
  template <class T, class U>                                                                                          \
  AGX void simdgroup_load(__private simdgroup_matrix<T, 8, 8>& m, const space U* p, uint stride = 8,                   \
                          ulong2 = ulong2(0), bool transposed = false) {                                               \
    const uint r = msl_row(), c = msl_column();                                                                        \
    m.e.msl_data[0] = T(transposed ? p[c * stride + r] : p[r * stride + c]);                                           \
    m.e.msl_data[1] = T(transposed ? p[(c + 1) * stride + r] : p[r * stride + c + 1]);                                 \
  }                                                                                                                    \
  template <class T, class U>                                                                                          \
  AGX void simdgroup_store(simdgroup_matrix<T, 8, 8> m, space U* p, uint stride = 8, ulong2 = ulong2(0),               \
                           bool transposed = false) {                                                                  \
    const uint r = msl_row(), c = msl_column();                                                                        \
    p[r * stride + c] = U(m.e.msl_data[0]);                                                                            \
    p[r * stride + c + 1] = U(m.e.msl_data[1]);                                                                        \
  }
MSL_MEMORY(__global) MSL_MEMORY(__local)
#undef MSL_MEMORY
template <class D, class A, class B, class C>
AGX void simdgroup_multiply_accumulate(__private simdgroup_matrix<D, 8, 8>& d, simdgroup_matrix<A, 8, 8> a,
                                       simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c) {
  for (int i = 0; i < 2; ++i)
    d.e.msl_data[i] = D(fma(float(a.e.msl_data[i]), float(b.e.msl_data[i]), float(c.e.msl_data[i])));
}

// ---- atomics
template <class T> struct atomic { T msl_value; };
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
#define MSL_ATOMIC(space)                                                                                              \
  template <class T> AGX T atomic_load_explicit(const volatile space atomic<T>* p, memory_order) {                     \
    return p->msl_value;                                                                                               \
  }                                                                                                                    \
  template <class T, class U> AGX void atomic_store_explicit(volatile space atomic<T>* p, U v, memory_order) {         \
    p->msl_value = T(v);                                                                                               \
  }
MSL_ATOMIC(__global) MSL_ATOMIC(__local)
#undef MSL_ATOMIC
#define MSL_FETCH(name)                                                                                                \
  template <class T, class U> AGX T atomic_fetch_##name##_explicit(volatile __global atomic<T>* p, U v, memory_order) { \
    return T(::ocl_atomic_##name((volatile __global int*)p, int(v)));                                                  \
  }                                                                                                                    \
  template <class T, class U> AGX T atomic_fetch_##name##_explicit(volatile __local atomic<T>* p, U v, memory_order) {  \
    return T(::ocl_atomic_##name((volatile __local int*)p, int(v)));                                                   \
  }
MSL_FETCH(add) MSL_FETCH(or) MSL_FETCH(max) MSL_FETCH(min)
#undef MSL_FETCH
} // namespace metal

using metal::bfloat;
typedef bfloat bfloat16_t;
#define MSL_TYPES(t)                                                                                                   \
  using metal::t##2;                                                                                                   \
  using metal::t##3;                                                                                                   \
  using metal::t##4;                                                                                                   \
  using metal::packed_##t##2;                                                                                          \
  using metal::packed_##t##3;                                                                                          \
  using metal::packed_##t##4;
MSL_ALL_TYPES
#undef MSL_TYPES

// A kernel's buffer, as whatever pointer its parameter is
struct msl_device {
  __global void* p;
  template <class T> AGX operator __global T*() const { return (__global T*)p; }
};
