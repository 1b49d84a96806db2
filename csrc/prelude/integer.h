// <metal_integer>, scalar and vector.
#pragma once
#include "float_math.h"

namespace metal {

#define MSL_INTEGER_FUNCTIONS(T)                                                                                       \
  MSL_INLINE constexpr T min(T x, T y) { return y < x ? y : x; }                                                       \
  MSL_INLINE constexpr T max(T x, T y) { return x < y ? y : x; }                                                       \
  MSL_INLINE constexpr T clamp(T x, T low, T high) { return min(max(x, low), high); }                                  \
  MSL_INLINE constexpr T min3(T x, T y, T z) { return min(x, min(y, z)); }                                             \
  MSL_INLINE constexpr T max3(T x, T y, T z) { return max(x, max(y, z)); }                                             \
  MSL_INLINE constexpr T median3(T x, T y, T z) { return max(min(x, y), min(max(x, y), z)); }                          \
  MSL_INLINE constexpr T abs(T x) { return msl_::magnitude(x); }                                                       \
  MSL_INLINE constexpr std::make_unsigned_t<T> absdiff(T x, T y) { return msl_::distance(x, y); }                      \
  MSL_INLINE constexpr T addsat(T x, T y) { return msl_::saturating_add(x, y); }                                       \
  MSL_INLINE constexpr T subsat(T x, T y) { return msl_::saturating_sub(x, y); }                                       \
  MSL_INLINE constexpr T hadd(T x, T y) { return T((__int128(x) + y) >> 1); }                                          \
  MSL_INLINE constexpr T rhadd(T x, T y) { return T((__int128(x) + y + 1) >> 1); }                                     \
  MSL_INLINE constexpr T mulhi(T x, T y) { return msl_::high_product(x, y); }                                          \
  MSL_INLINE constexpr T madhi(T x, T y, T z) { return T(mulhi(x, y) + z); }                                           \
  MSL_INLINE constexpr T madsat(T x, T y, T z) { return msl_::saturate_to<T>(__int128(x) * y + z); }                   \
  MSL_INLINE constexpr T popcount(T x) { return T(__builtin_popcountll(std::make_unsigned_t<T>(x))); }                 \
  MSL_INLINE constexpr T clz(T x) { return msl_::zeros_above(x); }                                                     \
  MSL_INLINE constexpr T ctz(T x) { return x == 0 ? T(sizeof(T) * 8) : T(__builtin_ctzll(static_cast<ulong>(x))); }    \
  MSL_INLINE constexpr T reverse_bits(T x) { return msl_::reversed(x); }                                               \
  MSL_INLINE constexpr T rotate(T x, T count) { return msl_::rotated(x, count); }                                      \
  MSL_INLINE constexpr T extract_bits(T x, uint offset, uint bits) { return msl_::field(x, offset, bits); }            \
  MSL_INLINE constexpr T insert_bits(T base, T insert, uint offset, uint bits) {                                       \
    return msl_::with_field(base, insert, offset, bits);                                                               \
  }

} // namespace metal

namespace msl_ {

template <class T> constexpr int bits_of = sizeof(T) * 8;

template <class T> constexpr T magnitude(T x) { return x < T(0) ? T(std::make_unsigned_t<T>(0) - x) : x; }
template <class T> constexpr auto distance(T x, T y) {
  using U = std::make_unsigned_t<T>;
  return x > y ? U(U(x) - U(y)) : U(U(y) - U(x));
}
template <class T> constexpr T saturating_add(T x, T y) {
  T sum{};
  if (!__builtin_add_overflow(x, y, &sum)) return sum;
  return y < T(0) ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
}
template <class T> constexpr T saturating_sub(T x, T y) {
  T difference{};
  if (!__builtin_sub_overflow(x, y, &difference)) return difference;
  return x < y ? std::numeric_limits<T>::min() : std::numeric_limits<T>::max();
}
template <class T> constexpr T saturate_to(__int128 x) {
  if (x < std::numeric_limits<T>::min()) return std::numeric_limits<T>::min();
  return x > std::numeric_limits<T>::max() ? std::numeric_limits<T>::max() : T(x);
}
template <class T> constexpr T high_product(T x, T y) {
  if constexpr (std::is_unsigned_v<T>)
    return T((static_cast<unsigned __int128>(x) * y) >> bits_of<T>);
  else
    return T((static_cast<__int128>(x) * y) >> bits_of<T>);
}
template <class T> constexpr T zeros_above(T x) {
  return x == 0 ? T(bits_of<T>) : T(__builtin_clzll(std::make_unsigned_t<T>(x)) - (64 - bits_of<T>));
}
template <class T> constexpr T reversed(T x) {
  using U = std::make_unsigned_t<T>;
  U from = U(x), to = 0;
  for (int i = 0; i < bits_of<T>; i++) {
    to = U(to << 1 | (from & 1));
    from = U(from >> 1);
  }
  return T(to);
}
template <class T> constexpr T rotated(T x, T count) {
  using U = std::make_unsigned_t<T>;
  const int n = int(U(count) % bits_of<T>);
  return n == 0 ? x : T(U(U(x) << n) | U(U(x) >> (bits_of<T> - n)));
}
template <class T> constexpr T field(T x, uint offset, uint bits) { // sign-extended for signed types
  if (bits == 0) return T(0);
  return T(T(std::make_unsigned_t<T>(x) << (bits_of<T> - offset - bits)) >> (bits_of<T> - bits));
}
template <class T> constexpr T with_field(T base, T insert, uint offset, uint bits) {
  using U = std::make_unsigned_t<T>;
  const U ones = int(bits) >= bits_of<T> ? U(~U(0)) : U((U(1) << bits) - 1);
  return T((U(base) & U(~U(ones << offset))) | (U(U(insert) & ones) << offset));
}

} // namespace msl_

namespace metal {

MSL_INTEGER_FUNCTIONS(char)
MSL_INTEGER_FUNCTIONS(int8_t) // which is not the same type as char
MSL_INTEGER_FUNCTIONS(uchar)
MSL_INTEGER_FUNCTIONS(short)
MSL_INTEGER_FUNCTIONS(ushort)
MSL_INTEGER_FUNCTIONS(int)
MSL_INTEGER_FUNCTIONS(uint)
MSL_INTEGER_FUNCTIONS(long)
MSL_INTEGER_FUNCTIONS(ulong)
#undef MSL_INTEGER_FUNCTIONS

// 24-bit products: the operands' upper bits must be zero (or sign), so this is the whole product.
#define MSL_24BIT(T)                                                                                                   \
  MSL_INLINE constexpr T mul24(T x, T y) { return x * y; }                                                             \
  MSL_INLINE constexpr T mad24(T x, T y, T z) { return x * y + z; }
MSL_24BIT(int)
MSL_24BIT(uint)
#undef MSL_24BIT

MSL_LIFT_1(abs)
MSL_LIFT_1(clz)
MSL_LIFT_1(ctz)
MSL_LIFT_1(popcount)
MSL_LIFT_1(reverse_bits)
MSL_LIFT_2(absdiff)
MSL_LIFT_2(addsat)
MSL_LIFT_2(hadd)
MSL_LIFT_2(max)
MSL_LIFT_2(min)
MSL_LIFT_2(mul24)
MSL_LIFT_2(mulhi)
MSL_LIFT_2(rhadd)
MSL_LIFT_2(rotate)
MSL_LIFT_2(subsat)
MSL_LIFT_3(clamp)
MSL_LIFT_3(mad24)
MSL_LIFT_3(madhi)
MSL_LIFT_3(madsat)
MSL_LIFT_3(max3)
MSL_LIFT_3(median3)
MSL_LIFT_3(min3)
template <class A, class = msl_::if_vector<A>>
MSL_INLINE msl_::vector_of<A> extract_bits(const A& a, uint offset, uint bits) {
  msl_::vector_of<A> r;
  for (int i = 0; i < msl_::lanes_of<A>; i++)
    r.d[i] = extract_bits(msl_::element<msl_::element_of<A>>(a, i), offset, bits);
  return r;
}
template <class A, class B, class = msl_::if_pair<A, B>>
MSL_INLINE msl_::vector_of<A> insert_bits(const A& a, const B& b, uint offset, uint bits) {
  using E = msl_::element_of<A>;
  msl_::vector_of<A> r;
  for (int i = 0; i < msl_::lanes_of<A>; i++)
    r.d[i] = insert_bits(msl_::element<E>(a, i), msl_::element<E>(b, i), offset, bits);
  return r;
}

} // namespace metal
