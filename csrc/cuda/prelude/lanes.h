// How the lanes of a simdgroup exchange values: by shuffles in which every lane takes part that has not returned. A
// simd function in divergent code whose other lanes go on to another simd function is therefore an error here.
//
// MSL_PERMUTED numbers the shader's lanes so that Apple's layout of an 8x8 matrix is the tensor core's: a permutation
// of the bits of the lane's index. Shuffles and votes translate between the two numberings.
#pragma once
#include "barrier.h"
#include "reductions.h"

namespace msl_ {

constexpr uint32_t kAllLanes = 0xffffffff;

#if defined(MSL_PERMUTED)
constexpr uint32_t shader_lane(uint32_t lane) { return (lane & 0x11) | (lane & 2) << 2 | (lane >> 1 & 6); }
constexpr uint32_t hardware_lane(uint32_t lane) { return (lane & 0x11) | (lane >> 2 & 2) | (lane & 6) << 1; }
MSL_INLINE uint32_t shader_mask(uint32_t mask) {
  if (mask == kAllLanes || mask == 0) return mask;
  uint32_t permuted = 0;
  for (uint32_t i = 0; i < kLanes; i++) permuted |= (mask >> hardware_lane(i) & 1) << i;
  return permuted;
}
#else
constexpr uint32_t shader_lane(uint32_t lane) { return lane; }
constexpr uint32_t hardware_lane(uint32_t lane) { return lane; }
MSL_INLINE uint32_t shader_mask(uint32_t mask) { return mask; }
#endif

MSL_INLINE uint32_t own_hardware_lane() { return threadIdx.x & 31; }
MSL_INLINE uint32_t own_lane() { return shader_lane(own_hardware_lane()); }
MSL_INLINE uint32_t live_hardware_lanes() { return __ballot_sync(kAllLanes, 1); }

// The value of a lane in the hardware's numbering, word by word.
template <class T> MSL_INLINE T fetch(const T& value, uint32_t hardware_lane) {
  constexpr int n = (sizeof(T) + 3) / 4;
  uint32_t words[n];
  words[n - 1] = 0;
  memcpy(words, &value, sizeof(T));
  for (int i = 0; i < n; i++) words[i] = __shfl_sync(kAllLanes, words[i], static_cast<int>(hardware_lane));
  T fetched;
  memcpy(static_cast<void*>(&fetched), words, sizeof(T));
  return fetched;
}

MSL_INLINE uint32_t vote(bool value, int) { return shader_mask(__ballot_sync(kAllLanes, value)); }
MSL_INLINE uint32_t active_lanes(int) { return shader_mask(live_hardware_lanes()); }
template <class T> MSL_INLINE T shuffle(T value, uint32_t from, int) {
  return fetch(value, hardware_lane(from % kLanes));
}
template <class T> MSL_INLINE T broadcast_first(T value, int line) {
  return shuffle(value, static_cast<uint32_t>(__builtin_ctz(active_lanes(line))), line);
}

// One instruction for 32-bit integers; it leaves out lanes that have returned.
template <class Op, class T> constexpr bool has_hardware_reduction = false;
#if __CUDA_ARCH__ >= 800
#define MSL_HARDWARE_REDUCTION(Op, T, operation)                                                                       \
  template <> constexpr bool has_hardware_reduction<Op, T> = true;                                                     \
  MSL_INLINE T hardware_reduction(Op, T value) { return static_cast<T>(operation); }
MSL_HARDWARE_REDUCTION(Sum, uint, __reduce_add_sync(kAllLanes, value))
MSL_HARDWARE_REDUCTION(Sum, int, __reduce_add_sync(kAllLanes, static_cast<uint>(value)))
MSL_HARDWARE_REDUCTION(Max, uint, __reduce_max_sync(kAllLanes, value))
MSL_HARDWARE_REDUCTION(Max, int, __reduce_max_sync(kAllLanes, value))
MSL_HARDWARE_REDUCTION(Min, uint, __reduce_min_sync(kAllLanes, value))
MSL_HARDWARE_REDUCTION(Min, int, __reduce_min_sync(kAllLanes, value))
MSL_HARDWARE_REDUCTION(And, uint, __reduce_and_sync(kAllLanes, value))
MSL_HARDWARE_REDUCTION(And, int, __reduce_and_sync(kAllLanes, static_cast<uint>(value)))
MSL_HARDWARE_REDUCTION(Or, uint, __reduce_or_sync(kAllLanes, value))
MSL_HARDWARE_REDUCTION(Or, int, __reduce_or_sync(kAllLanes, static_cast<uint>(value)))
MSL_HARDWARE_REDUCTION(Xor, uint, __reduce_xor_sync(kAllLanes, value))
MSL_HARDWARE_REDUCTION(Xor, int, __reduce_xor_sync(kAllLanes, static_cast<uint>(value)))
#undef MSL_HARDWARE_REDUCTION
#endif

// Halves are folded, in the shader's numbering; if lanes are missing, those that are there go one by one.
template <class Op, class T> MSL_INLINE T reduce(T value, int) {
  if constexpr (has_hardware_reduction<Op, T>) {
    return hardware_reduction(Op(), value);
  } else {
    const uint32_t live = live_hardware_lanes();
    if (live == kAllLanes) {
      for (uint32_t half = kLanes / 2; half > 0; half /= 2)
        value = Op::combine(value, fetch(value, own_hardware_lane() ^ hardware_lane(half)));
      return value;
    }
    const uint32_t first = static_cast<uint32_t>(__ffs(static_cast<int>(live)) - 1);
    T result = fetch(value, first);
#pragma unroll 1
    for (uint32_t i = first + 1; i < kLanes; i++) {
      const T other = fetch(value, i);
      if (live >> i & 1) result = Op::combine(result, other);
    }
    return result;
  }
}

// Over lanes [first, last) that are there, in their order.
template <class Op, class T> MSL_INLINE T scan_lanes(T value, uint32_t begin, uint32_t count, uint32_t end) {
  const uint32_t live = shader_mask(live_hardware_lanes());
  T result = Op::template neutral<T>();
#pragma unroll 1
  for (uint32_t i = begin; i < begin + count; i++) {
    const T other = fetch(value, hardware_lane(i));
    if (i < end && (live >> i & 1)) result = Op::combine(result, other);
  }
  return result;
}
template <class Op, bool Inclusive, class T> MSL_INLINE T scan(T value, int) {
  return scan_lanes<Op>(value, 0, kLanes, own_lane() + Inclusive);
}
template <class Op, bool Inclusive, class T> MSL_INLINE T scan_quad(T value, int) {
  const uint32_t lane = own_lane();
  return scan_lanes<Op>(value, lane & ~3u, 4, lane + Inclusive);
}
template <class Op, class T> MSL_INLINE T reduce_quad(T value, int) {
  const uint32_t live = shader_mask(live_hardware_lanes()), first = own_lane() & ~3u;
  T result{};
  bool any = false;
  for (uint32_t i = first; i < first + 4; i++) {
    const T other = fetch(value, hardware_lane(i));
    if (!(live >> i & 1)) continue;
    result = any ? Op::combine(result, other) : other;
    any = true;
  }
  return result;
}

} // namespace msl_
