// <metal_simdgroup> and <metal_quadgroup>: functions across the lanes of a simdgroup, by what the platform's lanes.h
// offers.
//
// Order of reductions (simd_sum and the like): halves are folded, lane i with lane i+16, then i+8, +4, +2, +1, the
// order of a butterfly of shuffles. Inactive lanes count as the neutral element. Prefix functions go lane by lane.
#pragma once
#include "lanes.h"

namespace msl_ {

// Lanes that would read beyond the group of `width` lanes keep what `outside` says.
template <class T> MSL_LANE_CODE T shift(T value, int by, uint32_t width, T outside, int line) {
  const uint32_t lane = own_lane(), first = lane - lane % width;
  const int from = static_cast<int>(lane % width) + by;
  const bool inside = from >= 0 && from < static_cast<int>(width);
  const T moved = shuffle(value, inside ? first + static_cast<uint32_t>(from) : lane, line);
  return inside ? moved : outside;
}
// Like shift, but the vacated lanes take the values of `fill` that wrap around.
template <class T> MSL_LANE_CODE T shift_and_fill(T value, T fill, int by, uint32_t width, int line) {
  struct Both {
    T value, fill;
  };
  const uint32_t lane = own_lane(), first = lane - lane % width;
  const int from = static_cast<int>(lane % width) + by, modulus = static_cast<int>(width);
  const bool inside = from >= 0 && from < modulus;
  const auto source = first + static_cast<uint32_t>((from % modulus + modulus) % modulus);
  const Both moved = shuffle(Both{value, fill}, source, line);
  return inside ? moved.value : moved.fill;
}

} // namespace msl_

namespace metal {

#define MSL_LINE int line = __builtin_LINE()

struct simd_vote {
  using vote_t = ulong;
  vote_t votes;
  explicit constexpr simd_vote(vote_t v = 0) : votes(v) {}
  explicit constexpr operator vote_t() const { return votes; }
  constexpr bool all() const { return votes == 0xffffffffu; }
  constexpr bool any() const { return votes != 0; }
};
struct quad_vote {
  using vote_t = uint;
  vote_t votes;
  explicit constexpr quad_vote(vote_t v = 0) : votes(v) {}
  explicit constexpr operator vote_t() const { return votes; }
  constexpr bool all() const { return votes == 15; }
  constexpr bool any() const { return votes != 0; }
};

#define MSL_REDUCTION(name, Op)                                                                                        \
  template <class T> MSL_INLINE msl_::passed<T> simd_##name(const T& x, MSL_LINE) {                                    \
    return msl_::reduce<msl_::Op, msl_::passed<T>>(x, line);                                                           \
  }                                                                                                                    \
  template <class T> MSL_INLINE msl_::passed<T> quad_##name(const T& x, MSL_LINE) {                                    \
    return msl_::reduce_quad<msl_::Op, msl_::passed<T>>(x, line);                                                      \
  }
MSL_REDUCTION(sum, Sum)
MSL_REDUCTION(product, Product)
MSL_REDUCTION(max, Max)
MSL_REDUCTION(min, Min)
MSL_REDUCTION(and, And)
MSL_REDUCTION(or, Or)
MSL_REDUCTION(xor, Xor)
#undef MSL_REDUCTION

#define MSL_PREFIX(name, Op, inclusive)                                                                                \
  template <class T> MSL_INLINE msl_::passed<T> simd_prefix_##name(const T& x, MSL_LINE) {                             \
    return msl_::scan<msl_::Op, inclusive, msl_::passed<T>>(x, line);                                                  \
  }                                                                                                                    \
  template <class T> MSL_INLINE msl_::passed<T> quad_prefix_##name(const T& x, MSL_LINE) {                             \
    return msl_::scan_quad<msl_::Op, inclusive, msl_::passed<T>>(x, line);                                             \
  }
MSL_PREFIX(inclusive_sum, Sum, true)
MSL_PREFIX(exclusive_sum, Sum, false)
MSL_PREFIX(inclusive_product, Product, true)
MSL_PREFIX(exclusive_product, Product, false)
#undef MSL_PREFIX

MSL_INLINE bool simd_any(bool x, MSL_LINE) { return msl_::vote(x, line) != 0; }
MSL_INLINE bool simd_all(bool x, MSL_LINE) { return msl_::vote(!x, line) == 0; }
MSL_INLINE simd_vote simd_ballot(bool x, MSL_LINE) { return simd_vote(msl_::vote(x, line)); }
MSL_INLINE simd_vote simd_active_threads_mask(MSL_LINE) { return simd_vote(msl_::active_lanes(line)); }
MSL_INLINE bool simd_is_first(MSL_LINE) {
  return msl_::own_lane() == static_cast<uint>(__builtin_ctz(msl_::active_lanes(line)));
}
MSL_INLINE bool simd_is_helper_thread() { return false; }

} // namespace metal

namespace msl_ {
MSL_INLINE uint quad_part(uint votes) { return votes >> (msl_::own_lane() & ~3u) & 15; }
} // namespace msl_

namespace metal {
MSL_INLINE bool quad_any(bool x, MSL_LINE) { return msl_::quad_part(msl_::vote(x, line)) != 0; }
MSL_INLINE bool quad_all(bool x, MSL_LINE) { return msl_::quad_part(msl_::vote(!x, line)) == 0; }
MSL_INLINE quad_vote quad_ballot(bool x, MSL_LINE) { return quad_vote(msl_::quad_part(msl_::vote(x, line))); }
MSL_INLINE quad_vote quad_active_threads_mask(MSL_LINE) { return quad_vote(msl_::quad_part(msl_::active_lanes(line))); }
MSL_INLINE bool quad_is_first(MSL_LINE) {
  return (msl_::own_lane() & 3) == static_cast<uint>(__builtin_ctz(msl_::quad_part(msl_::active_lanes(line))));
}
MSL_INLINE bool quad_is_helper_thread() { return false; }

#define MSL_SHUFFLE(name, parameter, from)                                                                             \
  template <class T> MSL_INLINE msl_::passed<T> name(const T& x, ushort parameter, MSL_LINE) {                         \
    return msl_::shuffle<msl_::passed<T>>(x, from, line);                                                              \
  }
MSL_SHUFFLE(simd_broadcast, lane, lane)
MSL_SHUFFLE(simd_shuffle, lane, lane)
MSL_SHUFFLE(simd_shuffle_xor, mask, msl_::own_lane() ^ mask)
MSL_SHUFFLE(simd_shuffle_rotate_down, delta, msl_::own_lane() + delta)
MSL_SHUFFLE(simd_shuffle_rotate_up, delta, msl_::own_lane() - delta)
MSL_SHUFFLE(quad_broadcast, lane, (msl_::own_lane() & ~3u) | (lane & 3))
MSL_SHUFFLE(quad_shuffle, lane, (msl_::own_lane() & ~3u) | (lane & 3))
MSL_SHUFFLE(quad_shuffle_xor, mask, msl_::own_lane() ^ (mask & 3))
MSL_SHUFFLE(quad_shuffle_rotate_down, delta, (msl_::own_lane() & ~3u) | ((msl_::own_lane() + delta) & 3))
MSL_SHUFFLE(quad_shuffle_rotate_up, delta, (msl_::own_lane() & ~3u) | ((msl_::own_lane() - delta) & 3))
#undef MSL_SHUFFLE

template <class T> MSL_INLINE msl_::passed<T> simd_broadcast_first(const T& x, MSL_LINE) {
  return msl_::broadcast_first<msl_::passed<T>>(x, line);
}
template <class T> MSL_INLINE msl_::passed<T> quad_broadcast_first(const T& x, MSL_LINE) {
  const uint first = msl_::own_lane() & ~3u;
  return msl_::shuffle<msl_::passed<T>>(
      x, first + static_cast<uint>(__builtin_ctz(msl_::quad_part(msl_::active_lanes(line)))), line);
}

// Lanes without a source keep their own value.
#define MSL_SHIFT(name, sign, width)                                                                                   \
  template <class T> MSL_INLINE msl_::passed<T> name(const T& x, ushort delta, MSL_LINE) {                             \
    return msl_::shift<msl_::passed<T>>(x, sign int(delta), width, x, line);                                           \
  }
MSL_SHIFT(simd_shuffle_up, -, 32)
MSL_SHIFT(simd_shuffle_down, +, 32)
MSL_SHIFT(quad_shuffle_up, -, 4)
MSL_SHIFT(quad_shuffle_down, +, 4)
#undef MSL_SHIFT

#define MSL_FILL(name, sign, all)                                                                                      \
  template <class T>                                                                                                   \
  MSL_INLINE msl_::passed<T> name(const T& x, const T& fill, ushort delta, ushort modulo = all, MSL_LINE) {            \
    return msl_::shift_and_fill<msl_::passed<T>>(x, fill, sign int(delta), modulo, line);                              \
  }
MSL_FILL(simd_shuffle_and_fill_up, -, 32)
MSL_FILL(simd_shuffle_and_fill_down, +, 32)
MSL_FILL(quad_shuffle_and_fill_up, -, 4)
MSL_FILL(quad_shuffle_and_fill_down, +, 4)
#undef MSL_FILL

} // namespace metal
