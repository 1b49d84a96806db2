// What the shared prelude asks of the platform that it is compiled for: here NVRTC in its default-device mode, in which
// functions without an annotation run on the GPU. A threadgroup is a block, a simdgroup a warp.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <type_traits>

#include "argument_info.h"
#include "builtins.h"

#define MSL_INLINE __forceinline__
#define MSL_LANE_CODE MSL_INLINE

// CUDA declares functions and vector types of its own in the global namespace; a shader's text lies in this one, where
// Metal's hide them.
#define MSL_SHADER_SCOPE_BEGIN namespace msl_shader {
#define MSL_SHADER_SCOPE_END }

// half is a class here as well, but converts in hardware.
#define MSL_NATIVE_HALF 0
#define MSL_HARDWARE_FORMATS 1
#define MSL_DIVIDES_AS_THE_GPU

namespace msl_ {

constexpr uint32_t kLanes = MSL_LANES;

MSL_INLINE uint16_t encode_half(float value) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
MSL_INLINE float decode_half(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
MSL_INLINE uint16_t encode_bfloat(float value) {
#if __CUDA_ARCH__ >= 800
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
#else
  const uint32_t bits = __float_as_uint(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}

MSL_INLINE int cut_to_int(float value) { return __float2int_rz(value); }
MSL_INLINE unsigned int cut_to_uint(float value) { return __float2uint_rz(value); }

#if defined(MSL_CHECKED)
MSL_INLINE void report_zero_divisor(int line, const char* file) {
  printf("torch_foundry: %s:%d: integer division by zero in threadgroup %u, %u, %u\n", file, line, blockIdx.x,
         blockIdx.y, blockIdx.z);
}
#endif

// What the host writes in front of a launch's arguments.
struct Launch {
  uint32_t grid[3];   // threads
  uint32_t group[3];  // threads of a threadgroup that is not cut by the grid's edge
  uint32_t groups[3]; // threadgroups
  uint32_t weights;   // how many there are below
  struct {
    uint64_t address, bytes, share; // bytes in all, and of a threadgroup
    uint32_t fetched;               // bytes of a share that are asked for ahead
  } weight[MSL_MAX_WEIGHTS];
};

// A threadgroup and a thread of it, as the attributes of a kernel's parameters ask for them.
struct Group {
  uint32_t grid[3];
  uint32_t groups[3];
  uint32_t nominal_size[3];
  uint32_t size[3];
  uint32_t position[3];
  uint32_t nthreads;
  uint32_t nominal_nthreads;
};
struct Thread {
  uint32_t lane;
  uint32_t index; // in the threadgroup
  uint32_t position[3];
};

} // namespace msl_
