// C interface between compiled kernels, the host runtime and whoever launches kernels.
//
// A kernel library is one translated .metal file. It exports msl_get_module() and refers to the msl_rt_* symbols of
// the runtime library, which the process has loaded before it with global visibility.
#pragma once
#include "../prelude/argument_info.h"

#define MSL_EXPORT __attribute__((visibility("default")))

// Kernels and runtime must agree in layout and in the way fibers are switched: builds of another kind have another
// number.
#define MSL_ABI_LAYOUT 3u
#if defined(MSL_ASAN)
#define MSL_ABI_FLAVOUR 1u
#elif defined(MSL_TSAN)
#define MSL_ABI_FLAVOUR 2u
#elif defined(MSL_FIBER_UCONTEXT)
#define MSL_ABI_FLAVOUR 3u
#else
#define MSL_ABI_FLAVOUR 0u
#endif
#define MSL_ABI (MSL_ABI_LAYOUT << 8 | MSL_ABI_FLAVOUR)

#ifdef __cplusplus
namespace msl_ {
struct Thread;
struct Group;
} // namespace msl_
typedef void (*msl_thunk)(const msl_::Group*, msl_::Thread*);
extern "C" {
#else
typedef void (*msl_thunk)(const void*, void*);
#endif

typedef struct {
  const char* name;
  msl_thunk call;
  uint32_t nargs;
  const msl_arg_info* args;
  uint32_t used; // bit i: the compiled kernel may read or write buffer i; without the bit it may be left unbound
} msl_kernel_entry;

typedef struct {
  uint32_t abi; // must equal msl_rt_abi()
  uint32_t nkernels;
  const msl_kernel_entry* kernels;
} msl_module;

typedef struct {
  const msl_kernel_entry* kernel;
  void* const* buffers;         // by buffer index; null where nothing is bound
  const uint64_t* buffer_bytes; // bytes readable from each pointer; may be null: then sizes are not checked
  uint32_t nbuffers;
  uint32_t grid[3]; // threads or threadgroups, see grid_is_threads
  uint32_t group[3];
  int32_t grid_is_threads; // dispatchThreads (ragged edge) or dispatchThreadgroups
  const uint32_t* threadgroup_bytes;
  uint32_t nthreadgroup;
} msl_launch;

enum { MSL_ORDER_FORWARD = 0, MSL_ORDER_REVERSE = 1, MSL_ORDER_RANDOM = 2 };

// Every kernel library exports this one.
MSL_EXPORT const msl_module* msl_get_module(void);

// Runs a kernel to its end. Returns 0, or 1 with a message in `error` (cut to error_bytes). Safe to call from several
// threads at once and in the child of a fork.
MSL_EXPORT int msl_rt_launch(const msl_launch* launch, char* error, uint64_t error_bytes);

// Lane order, its seed, OS threads (0: one per processor) and whether barrier divergence fails a launch (strict) or is
// printed only. Holds for launches that start afterwards.
MSL_EXPORT void msl_rt_configure(int lane_order, uint64_t seed, int threads, int strict);

// Whether kernels take subnormal f32 for zero and give zero for them, as Apple's GPUs do in every mode (f16 keeps its
// own). Holds for launches that start afterwards.
MSL_EXPORT void msl_rt_flush_subnormals(int flush);

// Which thread has which element of a cooperative tensor: one of many layouts (prelude/metal_tensor.h), by any number.
// Holds for launches that start afterwards.
MSL_EXPORT void msl_rt_tensor_layout(uint32_t layout);

MSL_EXPORT uint32_t msl_rt_abi(void);

#ifdef __cplusplus
}
#endif
