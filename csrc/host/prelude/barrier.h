// Barriers and fences: a fiber waits until the others have come.
#pragma once
#include "compute.h"

namespace msl_ {

// Kinds of waiting beside finished and barrier; with the source line they tell operations apart.
enum Operation : uint32_t {
  kSimdBarrier = kSiteBarrier + 1,
  kReduce,
  kScan,
  kVote,
  kShuffle,
  kMatrixProduct,
};
constexpr uint32_t site(Operation operation, int line) { return static_cast<uint32_t>(line) << 8 | operation; }

// To ThreadSanitizer a barrier orders what was before it, in all who arrive, before what comes after it.
template <bool Order> MSL_LANE_CODE void wait_at_barrier(int line, const char* file) {
  Thread* me = current();
  Simdgroup* simdgroup = me->simdgroup;
  simdgroup->file[me->lane] = file;
#if defined(MSL_TSAN)
  if (Order) msl_rt_release(simdgroup->group);
#endif
  wait_at(me, simdgroup, static_cast<uint32_t>(line) << 8 | kSiteBarrier);
#if defined(MSL_TSAN)
  if (Order) msl_rt_acquire(simdgroup->group);
#endif
}

template <bool Order> MSL_LANE_CODE void wait_at_simd_barrier(int line) {
  Thread* me = current();
  Simdgroup* simdgroup = me->simdgroup;
#if defined(MSL_TSAN)
  if (Order) msl_rt_release(simdgroup);
#endif
  wait_at(me, simdgroup, site(kSimdBarrier, line));
#if defined(MSL_TSAN)
  if (Order) msl_rt_acquire(simdgroup);
#endif
}

} // namespace msl_

namespace metal {

// Line and file are default arguments: they name the caller, also where a compiler merges or repeats calls.
MSL_INLINE void threadgroup_barrier(mem_flags flags, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  if (flags == mem_flags::mem_none)
    msl_::wait_at_barrier<false>(line, file);
  else
    msl_::wait_at_barrier<true>(line, file);
}
MSL_INLINE void simdgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  if (flags == mem_flags::mem_none)
    msl_::wait_at_simd_barrier<false>(line);
  else
    msl_::wait_at_simd_barrier<true>(line);
}
MSL_INLINE void atomic_thread_fence(mem_flags, memory_order = memory_order_seq_cst,
                                    thread_scope = thread_scope_device) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

} // namespace metal
