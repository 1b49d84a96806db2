// <metal_geometric>, <metal_relational>, <metal_pack>.
#pragma once
#include "integer.h"

namespace metal {

template <class A, class B, class = msl_::if_pair<A, B>>
MSL_INLINE typename msl_::operand_pair<A, B>::element dot(const A& a, const B& b) {
  using E = typename msl_::operand_pair<A, B>::element;
  E sum = E(msl_::element<E>(a, 0) * msl_::element<E>(b, 0));
  for (int i = 1; i < msl_::operand_pair<A, B>::lanes; i++)
    sum = E(sum + msl_::element<E>(a, i) * msl_::element<E>(b, i));
  return sum;
}
template <class A, class = msl_::if_vector<A>> MSL_INLINE msl_::element_of<A> length_squared(const A& a) {
  return dot(a, a);
}
template <class A, class = msl_::if_vector<A>> MSL_INLINE msl_::element_of<A> length(const A& a) {
  return sqrt(dot(a, a));
}
template <class A, class B, class = msl_::if_pair<A, B>> MSL_INLINE auto distance_squared(const A& a, const B& b) {
  return length_squared(a - b);
}
template <class A, class B, class = msl_::if_pair<A, B>> MSL_INLINE auto distance(const A& a, const B& b) {
  return length(a - b);
}
template <class A, class = msl_::if_vector<A>> MSL_INLINE msl_::vector_of<A> normalize(const A& a) {
  return a * rsqrt(dot(a, a));
}
template <class A, class B, class = msl_::if_pair<A, B>> MSL_INLINE msl_::vector_of<A> cross(const A& a, const B& b) {
  static_assert(msl_::lanes_of<A> == 3, "cross takes vectors of three elements");
  const msl_::vector_of<A> u = a, v = b;
  return {u.y * v.z - u.z * v.y, u.z * v.x - u.x * v.z, u.x * v.y - u.y * v.x};
}
template <class A, class B, class = msl_::if_pair<A, B>>
MSL_INLINE msl_::vector_of<A> reflect(const A& incident, const B& normal) {
  return incident - msl_::element_of<A>(2) * dot(normal, incident) * normal;
}
template <class A, class B, class C>
MSL_INLINE msl_::vector_of<A> faceforward(const A& normal, const B& incident, const C& reference) {
  return dot(reference, incident) < msl_::element_of<A>(0) ? msl_::vector_of<A>(normal) : -normal;
}
template <class A, class B, class E>
MSL_INLINE msl_::vector_of<A> refract(const A& incident, const B& normal, E ratio) {
  using T = msl_::element_of<A>;
  const T eta = T(ratio), cosine = dot(normal, incident), k = T(1) - eta * eta * (T(1) - cosine * cosine);
  if (k < T(0)) return msl_::vector_of<A>(T(0));
  return eta * incident - (eta * cosine + sqrt(k)) * normal;
}

MSL_INLINE bool any(bool x) { return x; }
MSL_INLINE bool all(bool x) { return x; }
template <class A, class = msl_::if_vector<A>> MSL_INLINE bool any(const A& a) {
  bool r = false;
  for (int i = 0; i < msl_::lanes_of<A>; i++) r |= bool(msl_::element<msl_::element_of<A>>(a, i));
  return r;
}
template <class A, class = msl_::if_vector<A>> MSL_INLINE bool all(const A& a) {
  bool r = true;
  for (int i = 0; i < msl_::lanes_of<A>; i++) r &= bool(msl_::element<msl_::element_of<A>>(a, i));
  return r;
}

// select(a, b, c): b where c holds.
template <class T, class C, class = std::enable_if_t<!msl_::is_vector<T> && !msl_::is_vector<C>>>
MSL_INLINE T select(T a, T b, C condition) {
  return condition ? b : a;
}
template <class A, class B, class C, class = msl_::if_pair<A, B>>
MSL_INLINE auto select(const A& a, const B& b, const C& condition) {
  using pair = msl_::operand_pair<A, B>;
  using E = typename pair::element;
  vec<E, pair::lanes> r;
  for (int i = 0; i < pair::lanes; i++)
    r.d[i] = msl_::element<bool>(condition, i) ? msl_::element<E>(b, i) : msl_::element<E>(a, i);
  return r;
}

} // namespace metal

namespace msl_ {
// A word of N fields of `bits` bits, lowest first; each holds round(clamp(v) * scale).
template <class W, int N, class T> MSL_INLINE W pack_normalized(vec<T, N> v, int bits, float low, float scale) {
  W word = 0;
  const W mask = W((ulong(1) << bits) - 1);
  for (int i = 0; i < N; i++) {
    const float x = least(most(static_cast<float>(v.d[i]), low), 1.0f);
    word |= W(W(static_cast<int>(__builtin_rintf(x * scale))) & mask) << (i * bits);
  }
  return word;
}
template <class T, int N, class W> MSL_INLINE vec<T, N> unpack_unsigned(W word, int bits, float scale) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r.d[i] = T(static_cast<float>(word >> (i * bits) & ((ulong(1) << bits) - 1)) / scale);
  return r;
}
template <class T, int N, class S, class W> MSL_INLINE vec<T, N> unpack_signed(W word, float scale) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) {
    const S field = static_cast<S>(word >> (i * int(sizeof(S)) * 8));
    r.d[i] = T(most(static_cast<float>(field) / scale, -1.0f));
  }
  return r;
}
} // namespace msl_

namespace metal {

#define MSL_PACK(T, name)                                                                                              \
  MSL_INLINE uint pack_##name##_to_unorm4x8(T##4 v) { return msl_::pack_normalized<uint>(v, 8, 0.0f, 255.0f); }        \
  MSL_INLINE uint pack_##name##_to_snorm4x8(T##4 v) { return msl_::pack_normalized<uint>(v, 8, -1.0f, 127.0f); }       \
  MSL_INLINE uint pack_##name##_to_unorm2x16(T##2 v) { return msl_::pack_normalized<uint>(v, 16, 0.0f, 65535.0f); }    \
  MSL_INLINE uint pack_##name##_to_snorm2x16(T##2 v) { return msl_::pack_normalized<uint>(v, 16, -1.0f, 32767.0f); }   \
  MSL_INLINE T##4 unpack_unorm4x8_to_##name(uint w) { return msl_::unpack_unsigned<T, 4>(w, 8, 255.0f); }              \
  MSL_INLINE T##4 unpack_snorm4x8_to_##name(uint w) { return msl_::unpack_signed<T, 4, signed char>(w, 127.0f); }      \
  MSL_INLINE T##2 unpack_unorm2x16_to_##name(uint w) { return msl_::unpack_unsigned<T, 2>(w, 16, 65535.0f); }          \
  MSL_INLINE T##2 unpack_snorm2x16_to_##name(uint w) { return msl_::unpack_signed<T, 2, short>(w, 32767.0f); }
MSL_PACK(float, float)
MSL_PACK(half, half)
#undef MSL_PACK

} // namespace metal
