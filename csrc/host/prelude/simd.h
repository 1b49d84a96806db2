// <metal_simdgroup> and <metal_quadgroup>: functions across the lanes of a simdgroup.
//
// A lane publishes its value, waits until all active lanes have, and reads what it needs. In divergent code only the
// lanes that reach the same line take part, as the active lanes do on a GPU; reading an inactive lane gives an old
// value.
//
// Order of reductions (simd_sum and the like): halves are folded, lane i with lane i+16, then i+8, +4, +2, +1, the
// order of a butterfly of shuffles. Inactive lanes count as the neutral element. Prefix functions go lane by lane.
#pragma once
#include "barrier.h"
#include "matrix.h"

namespace msl {

template <class T> MSL_INLINE T* slot(const Slots* slots, uint32_t lane) {
  static_assert(sizeof(T) <= 64, "simd functions take values of at most 64 bytes");
  constexpr size_t stride = sizeof(T) <= 4 ? 4 : sizeof(T) <= 8 ? 8 : sizeof(T) <= 16 ? 16 : 64;
  const unsigned char* base = stride == 4    ? slots->of4
                              : stride == 8  ? slots->of8
                              : stride == 16 ? slots->of16
                                             : slots->of64;
  return (T*)(base + lane * stride);
}

// What is passed between lanes: swizzles and packed vectors as plain vectors.
template <class T, class = void> struct passed_type {
  using type = T;
};
template <class T> struct passed_type<T, metal::if_vector<T>> {
  using type = metal::vector_of<T>;
};
template <class T> using passed = typename passed_type<T>::type;

// Publishes `value`, waits, and returns where the values of all lanes lie.
template <class T> MSL_LANE_CODE Simdgroup* exchange(const T& value, uint32_t at) {
  Thread* me = current;
  Simdgroup* simdgroup = me->simdgroup;
  __builtin_memcpy((void*)slot<T>(simdgroup->in, me->lane), &value, sizeof value);
  wait_at(me, simdgroup, at);
  return simdgroup;
}
template <class T> MSL_LANE_CODE T peek(const Simdgroup* simdgroup, uint32_t lane) {
  T value;
  __builtin_memcpy((void*)&value, slot<T>(simdgroup->out, lane % kLanes), sizeof value);
  return value;
}
MSL_LANE_CODE uint32_t own_lane() { return current->lane; }

struct Sum {
  static constexpr bool has_neutral = true;
  template <class T> static MSL_INLINE T neutral() { return T(0); }
  template <class T> static MSL_INLINE T combine(T a, T b) { return T(a + b); }
};
struct Product {
  static constexpr bool has_neutral = true;
  template <class T> static MSL_INLINE T neutral() { return T(1); }
  template <class T> static MSL_INLINE T combine(T a, T b) { return T(a * b); }
};
// For the others a repeated value is neutral, or zero is.
struct Max {
  static constexpr bool has_neutral = false;
  template <class T> static MSL_INLINE T combine(T a, T b) { return metal::max(a, b); }
};
struct Min {
  static constexpr bool has_neutral = false;
  template <class T> static MSL_INLINE T combine(T a, T b) { return metal::min(a, b); }
};
struct And {
  static constexpr bool has_neutral = false;
  template <class T> static MSL_INLINE T combine(T a, T b) { return T(a & b); }
};
struct Or {
  static constexpr bool has_neutral = false;
  template <class T> static MSL_INLINE T combine(T a, T b) { return T(a | b); }
};
struct Xor {
  static constexpr bool has_neutral = true;
  template <class T> static MSL_INLINE T neutral() { return T(0); }
  template <class T> static MSL_INLINE T combine(T a, T b) {
    if constexpr (std::is_same_v<T, float>)
      return as_type<float>(as_type<uint>(a) ^ as_type<uint>(b)); // libraries have wrappers for it, if no use
    else
      return T(a ^ b);
  }
};

template <class Op, int Width, class T> MSL_INLINE T fold(T* values) {
  if constexpr (Width == 0) {
    return values[0];
  } else {
    for (int i = 0; i < Width; i++) values[i] = Op::combine(values[i], values[i + Width]);
    return fold<Op, Width / 2>(values);
  }
}

// Combines the values of the active lanes. The first lane that comes back does it for all.
template <class Op, class T> MSL_LANE_CODE T combine_lanes(const Simdgroup* simdgroup) {
  const uint32_t active = simdgroup->active;
  T values[kLanes];
  if (active == ~0u) {
    for (uint32_t i = 0; i < kLanes; i++) values[i] = peek<T>(simdgroup, i);
  } else {
    T filler = peek<T>(simdgroup, static_cast<uint32_t>(__builtin_ctz(active)));
    if constexpr (Op::has_neutral) filler = Op::template neutral<T>();
    for (uint32_t i = 0; i < kLanes; i++) values[i] = active >> i & 1 ? peek<T>(simdgroup, i) : filler;
  }
  return fold<Op, kLanes / 2>(values);
}

template <class Op, class T> MSL_LANE_CODE T reduce(T value, int line) {
  Simdgroup* simdgroup = exchange(value, site(kReduce, line));
  if (!simdgroup->reduced) {
    const T result = combine_lanes<Op, T>(simdgroup);
    __builtin_memcpy(simdgroup->result, &result, sizeof result);
    simdgroup->reduced = true;
  }
  T result;
  __builtin_memcpy((void*)&result, simdgroup->result, sizeof result);
  return result;
}

template <class Op, bool Inclusive, class T> MSL_LANE_CODE T scan(T value, int line) {
  const Simdgroup* simdgroup = exchange(value, site(kScan, line));
  const uint32_t lane = own_lane();
  T result = Op::template neutral<T>();
  for (uint32_t i = 0; i < lane + Inclusive; i++)
    if (simdgroup->active >> i & 1) result = Op::combine(result, peek<T>(simdgroup, i));
  return result;
}

MSL_LANE_CODE uint32_t vote(bool value, int line) {
  const Simdgroup* simdgroup = exchange<uint32_t>(value, site(kVote, line));
  uint32_t votes = 0;
  for (uint32_t i = 0; i < kLanes; i++) votes |= (peek<uint32_t>(simdgroup, i) & 1) << i;
  return votes & simdgroup->active;
}
MSL_LANE_CODE uint32_t active_lanes(int line) { return exchange<uint32_t>(1, site(kVote, line))->active; }

template <class T> MSL_LANE_CODE T shuffle(T value, uint32_t from, int line) {
  return peek<T>(exchange(value, site(kShuffle, line)), from);
}
template <class T> MSL_LANE_CODE T broadcast_first(T value, int line) {
  const Simdgroup* simdgroup = exchange(value, site(kShuffle, line));
  return peek<T>(simdgroup, static_cast<uint32_t>(__builtin_ctz(simdgroup->active)));
}
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

template <class Op, class T> MSL_LANE_CODE T reduce_quad(T value, int line) {
  const Simdgroup* simdgroup = exchange(value, site(kReduce, line));
  const uint32_t first = own_lane() & ~3u;
  T result{};
  bool any = false;
  for (uint32_t i = first; i < first + 4; i++) {
    if (!(simdgroup->active >> i & 1)) continue;
    const T other = peek<T>(simdgroup, i);
    result = any ? Op::combine(result, other) : other;
    any = true;
  }
  return result;
}
template <class Op, bool Inclusive, class T> MSL_LANE_CODE T scan_quad(T value, int line) {
  const Simdgroup* simdgroup = exchange(value, site(kScan, line));
  const uint32_t lane = own_lane();
  T result = Op::template neutral<T>();
  for (uint32_t i = lane & ~3u; i < lane + Inclusive; i++)
    if (simdgroup->active >> i & 1) result = Op::combine(result, peek<T>(simdgroup, i));
  return result;
}

} // namespace msl

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
  template <class T> MSL_INLINE msl::passed<T> simd_##name(const T& x, MSL_LINE) {                                     \
    return msl::reduce<msl::Op, msl::passed<T>>(x, line);                                                              \
  }                                                                                                                    \
  template <class T> MSL_INLINE msl::passed<T> quad_##name(const T& x, MSL_LINE) {                                     \
    return msl::reduce_quad<msl::Op, msl::passed<T>>(x, line);                                                         \
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
  template <class T> MSL_INLINE msl::passed<T> simd_prefix_##name(const T& x, MSL_LINE) {                              \
    return msl::scan<msl::Op, inclusive, msl::passed<T>>(x, line);                                                     \
  }                                                                                                                    \
  template <class T> MSL_INLINE msl::passed<T> quad_prefix_##name(const T& x, MSL_LINE) {                              \
    return msl::scan_quad<msl::Op, inclusive, msl::passed<T>>(x, line);                                                \
  }
MSL_PREFIX(inclusive_sum, Sum, true)
MSL_PREFIX(exclusive_sum, Sum, false)
MSL_PREFIX(inclusive_product, Product, true)
MSL_PREFIX(exclusive_product, Product, false)
#undef MSL_PREFIX

MSL_INLINE bool simd_any(bool x, MSL_LINE) { return msl::vote(x, line) != 0; }
MSL_INLINE bool simd_all(bool x, MSL_LINE) { return msl::vote(!x, line) == 0; }
MSL_INLINE simd_vote simd_ballot(bool x, MSL_LINE) { return simd_vote(msl::vote(x, line)); }
MSL_INLINE simd_vote simd_active_threads_mask(MSL_LINE) { return simd_vote(msl::active_lanes(line)); }
MSL_INLINE bool simd_is_first(MSL_LINE) {
  return msl::own_lane() == static_cast<uint>(__builtin_ctz(msl::active_lanes(line)));
}
MSL_INLINE bool simd_is_helper_thread() { return false; }

namespace detail {
MSL_INLINE uint quad_part(uint votes) { return votes >> (msl::own_lane() & ~3u) & 15; }
} // namespace detail
MSL_INLINE bool quad_any(bool x, MSL_LINE) { return detail::quad_part(msl::vote(x, line)) != 0; }
MSL_INLINE bool quad_all(bool x, MSL_LINE) { return detail::quad_part(msl::vote(!x, line)) == 0; }
MSL_INLINE quad_vote quad_ballot(bool x, MSL_LINE) { return quad_vote(detail::quad_part(msl::vote(x, line))); }
MSL_INLINE quad_vote quad_active_threads_mask(MSL_LINE) {
  return quad_vote(detail::quad_part(msl::active_lanes(line)));
}
MSL_INLINE bool quad_is_first(MSL_LINE) {
  return (msl::own_lane() & 3) == static_cast<uint>(__builtin_ctz(detail::quad_part(msl::active_lanes(line))));
}
MSL_INLINE bool quad_is_helper_thread() { return false; }

#define MSL_SHUFFLE(name, parameter, from)                                                                             \
  template <class T> MSL_INLINE msl::passed<T> name(const T& x, ushort parameter, MSL_LINE) {                          \
    return msl::shuffle<msl::passed<T>>(x, from, line);                                                                \
  }
MSL_SHUFFLE(simd_broadcast, lane, lane)
MSL_SHUFFLE(simd_shuffle, lane, lane)
MSL_SHUFFLE(simd_shuffle_xor, mask, msl::own_lane() ^ mask)
MSL_SHUFFLE(simd_shuffle_rotate_down, delta, msl::own_lane() + delta)
MSL_SHUFFLE(simd_shuffle_rotate_up, delta, msl::own_lane() - delta)
MSL_SHUFFLE(quad_broadcast, lane, (msl::own_lane() & ~3u) | (lane & 3))
MSL_SHUFFLE(quad_shuffle, lane, (msl::own_lane() & ~3u) | (lane & 3))
MSL_SHUFFLE(quad_shuffle_xor, mask, msl::own_lane() ^ (mask & 3))
MSL_SHUFFLE(quad_shuffle_rotate_down, delta, (msl::own_lane() & ~3u) | ((msl::own_lane() + delta) & 3))
MSL_SHUFFLE(quad_shuffle_rotate_up, delta, (msl::own_lane() & ~3u) | ((msl::own_lane() - delta) & 3))
#undef MSL_SHUFFLE

template <class T> MSL_INLINE msl::passed<T> simd_broadcast_first(const T& x, MSL_LINE) {
  return msl::broadcast_first<msl::passed<T>>(x, line);
}
template <class T> MSL_INLINE msl::passed<T> quad_broadcast_first(const T& x, MSL_LINE) {
  const uint first = msl::own_lane() & ~3u;
  return msl::shuffle<msl::passed<T>>(
      x, first + static_cast<uint>(__builtin_ctz(detail::quad_part(msl::active_lanes(line)))), line);
}

// Lanes without a source keep their own value.
#define MSL_SHIFT(name, sign, width)                                                                                   \
  template <class T> MSL_INLINE msl::passed<T> name(const T& x, ushort delta, MSL_LINE) {                              \
    return msl::shift<msl::passed<T>>(x, sign int(delta), width, x, line);                                             \
  }
MSL_SHIFT(simd_shuffle_up, -, 32)
MSL_SHIFT(simd_shuffle_down, +, 32)
MSL_SHIFT(quad_shuffle_up, -, 4)
MSL_SHIFT(quad_shuffle_down, +, 4)
#undef MSL_SHIFT

#define MSL_FILL(name, sign, all)                                                                                      \
  template <class T>                                                                                                   \
  MSL_INLINE msl::passed<T> name(const T& x, const T& fill, ushort delta, ushort modulo = all, MSL_LINE) {             \
    return msl::shift_and_fill<msl::passed<T>>(x, fill, sign int(delta), modulo, line);                                \
  }
MSL_FILL(simd_shuffle_and_fill_up, -, 32)
MSL_FILL(simd_shuffle_and_fill_down, +, 32)
MSL_FILL(quad_shuffle_and_fill_up, -, 4)
MSL_FILL(quad_shuffle_and_fill_down, +, 4)
#undef MSL_FILL

} // namespace metal
