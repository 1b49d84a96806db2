// Copies to threadgroup memory that need no registers: overloads of shaders/common/staging.h for pieces of 16 bytes,
// which pass the first cache, of 8 and of 4.
#pragma once
#include "vector.h"

#if __CUDA_ARCH__ >= 800
namespace msl_::vectors {

MSL_INLINE void copy_ahead(vec<uint32_t, 4>* to, const vec<uint32_t, 4>* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(__cvta_generic_to_global(from))
               : "memory");
}
MSL_INLINE void copy_ahead(vec<uint32_t, 2>* to, const vec<uint32_t, 2>* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(__cvta_generic_to_global(from))
               : "memory");
}
MSL_INLINE void copy_ahead(vec<uint8_t, 4>* to, const vec<uint8_t, 4>* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
               :
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))), "l"(__cvta_generic_to_global(from))
               : "memory");
}

MSL_INLINE void end_group_of_copies(vec<uint32_t, 4>*) { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <int Left> MSL_INLINE void wait_for_copies(vec<uint32_t, 4>*) {
  asm volatile("cp.async.wait_group %0;" ::"n"(Left) : "memory");
  __syncwarp();
}

} // namespace msl_::vectors
#endif
