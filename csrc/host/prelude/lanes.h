// How the lanes of a simdgroup exchange values: a lane publishes its value, waits until all active lanes have, and
// reads what it needs. In divergent code only the lanes that reach the same line take part, as the active lanes do on a
// GPU; reading an inactive lane gives an old value.
#pragma once
#include "barrier.h"
#include "reductions.h"

namespace msl_ {

template <class T> MSL_INLINE T* slot(const Slots* slots, uint32_t lane) {
  static_assert(sizeof(T) <= 64, "simd functions take values of at most 64 bytes");
  constexpr size_t stride = sizeof(T) <= 4 ? 4 : sizeof(T) <= 8 ? 8 : sizeof(T) <= 16 ? 16 : 64;
  const unsigned char* base = stride == 4    ? slots->of4
                              : stride == 8  ? slots->of8
                              : stride == 16 ? slots->of16
                                             : slots->of64;
  return (T*)(base + lane * stride);
}

// Publishes `value`, waits, and returns where the values of all lanes lie.
template <class T> MSL_LANE_CODE Simdgroup* exchange(const T& value, uint32_t at) {
  Thread* me = current();
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
MSL_LANE_CODE uint32_t own_lane() { return current()->lane; }

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

} // namespace msl_
