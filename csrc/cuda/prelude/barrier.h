// Barriers and fences.
#pragma once
#include "compute.h"

#if defined(MSL_CHECKED)
namespace msl_ {

__shared__ uint32_t group_threads; // set by the entry

// Reports a barrier that not all threads of the threadgroup reach: threads that have returned don't count to CUDA, on
// Metal the others would wait for them.
MSL_INLINE void checked_barrier(int line, const char* file) {
  __shared__ int site;
  site = line;
  const int arrived = __syncthreads_count(1);
  const bool same = __syncthreads_and(site == line) != 0;
  const bool speaks = (threadIdx.x & 31) == static_cast<unsigned>(__ffs(static_cast<int>(__activemask())) - 1);
  if (speaks && (arrived != static_cast<int>(group_threads) || site != line))
    printf("torch_foundry: %s:%d: barrier divergence in threadgroup %u, %u, %u: %d of %u threads arrive%s\n", file,
           line, blockIdx.x, blockIdx.y, blockIdx.z, arrived, group_threads, same ? "" : ", some at another barrier");
  __syncthreads();
}

} // namespace msl_
#endif

namespace metal {

#if defined(MSL_CHECKED)
MSL_INLINE void threadgroup_barrier(mem_flags, int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  msl_::checked_barrier(line, file);
}
#else
MSL_INLINE void threadgroup_barrier(mem_flags) { __syncthreads(); }
#endif
MSL_INLINE void simdgroup_barrier(mem_flags) { __syncwarp(); }
MSL_INLINE void atomic_thread_fence(mem_flags, memory_order = memory_order_seq_cst,
                                    thread_scope = thread_scope_device) {
  __threadfence();
}

} // namespace metal
