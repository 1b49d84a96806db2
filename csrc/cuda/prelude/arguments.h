// Binds what a launch provides to a kernel's parameters, and makes a kernel the entry of a module.
//
// All arguments are one parameter of the entry, so that the constant bank holds them: `constant T&` by value, all else
// as addresses. MSL_REFERENCES_IN_MEMORY has a bit for each buffer of the former kind that lies in device memory after
// all; MSL_INLINE_POINTERS lists {index, bytes} of pointers to bytes that come by value. The executor compiles such
// variants when a launch asks for them.
#pragma once
#include "attributes.h"
#include "barrier.h"
#include "lanes.h"

#if !defined(MSL_REFERENCES_IN_MEMORY)
#define MSL_REFERENCES_IN_MEMORY 0
#endif
#if !defined(MSL_INLINE_POINTERS)
#define MSL_INLINE_POINTERS
#endif
#if !defined(MSL_ENTRY_BOUNDS)
#define MSL_ENTRY_BOUNDS
#endif

namespace msl_ {

struct InlinePointer {
  uint32_t index, bytes;
};
constexpr InlinePointer inline_pointers[] = {MSL_INLINE_POINTERS{MSL_MAX_BUFFERS, 0}};

// A buffer. Present is false where a function constant switches the argument off, or the kernel's text never names it.
template <int Index, bool Present = true> struct buffer {
  static_assert(Index >= 0 && Index < MSL_MAX_BUFFERS, "buffer index: Metal allows 0 to 30");
  template <class P> static constexpr msl_arg_info info() {
    return {MSL_ARG_BUFFER, !std::is_pointer_v<P>, !Present, 0, Index, pointee_size<P>, pointee_alignment<P>};
  }
};
template <int Index, bool Present = true> struct threadgroup {
  static_assert(Index >= 0 && Index < MSL_MAX_BUFFERS, "threadgroup memory index: Metal allows 0 to 30");
  template <class P> static constexpr msl_arg_info info() {
    return {MSL_ARG_THREADGROUP, !std::is_pointer_v<P>, !Present, 0, Index, pointee_size<P>, pointee_alignment<P>};
  }
};

// The entry's parameter. The executor lays it out by the same rules (csrc/cuda/launch.cpp).
template <uint32_t Memories, uint32_t Buffers, uint32_t Bytes> struct Parameters {
  Launch launch;
  uint32_t memory[Memories + 1]; // where threadgroup memory argument i begins
  uint64_t buffers[Buffers + 1]; // addresses
  alignas(16) unsigned char values[Bytes + 16];
};

template <uint32_t N> struct Description {
  uint32_t parameter_bytes, count;
  msl_arg_info arguments[N + 1];
};

template <auto Function, class Args> struct kernel;
template <class... P, void (*Function)(P...), class... Tags> struct kernel<Function, args<Tags...>> {
  static_assert(sizeof...(P) == sizeof...(Tags), "a kernel needs one tag per parameter");
  static constexpr uint32_t count = sizeof...(P);
  static constexpr msl_arg_info infos[count + 1] = {Tags::template info<P>()...};

  static constexpr uint32_t indices(uint8_t kind) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++)
      if (infos[i].kind == kind && infos[i].index >= n) n = infos[i].index + 1;
    return n;
  }
  // Bytes that buffer `index` takes among the values; 0 if it comes as an address.
  static constexpr uint32_t value_bytes(uint32_t index) {
    for (uint32_t i = 0; i < count; i++)
      if (infos[i].kind == MSL_ARG_BUFFER && infos[i].index == index && infos[i].by_reference)
        return MSL_REFERENCES_IN_MEMORY >> index & 1 ? 0 : (infos[i].size + 15) / 16 * 16;
    for (const InlinePointer& pointer : inline_pointers)
      if (pointer.index == index) return (pointer.bytes + 15) / 16 * 16;
    return 0;
  }
  static constexpr uint32_t value_offset(uint32_t index) {
    uint32_t offset = 0;
    for (uint32_t i = 0; i < index; i++) offset += value_bytes(i);
    return offset;
  }

  using Parameter = Parameters<indices(MSL_ARG_THREADGROUP), indices(MSL_ARG_BUFFER), value_offset(MSL_MAX_BUFFERS)>;
  static constexpr Description<count> description = {sizeof(Parameter), count, {Tags::template info<P>()...}};

  // What lies at `address`, as the parameter takes it.
  template <class Q> static MSL_INLINE Q bind(void* address) {
    if constexpr (std::is_pointer_v<Q>)
      return (Q)address;
    else
      return *(typename pointee<Q>::type*)address;
  }

  template <class Tag> struct from {
    template <class Q> static MSL_INLINE Q get(const Parameter&, const Group& group, const Thread& thread) {
      return Tag::template get<Q>(group, thread);
    }
  };
  template <int Index, bool Present> struct from<buffer<Index, Present>> {
    template <class Q> static MSL_INLINE Q get(const Parameter& parameter, const Group&, const Thread&) {
      if constexpr (value_bytes(Index) > 0)
        return bind<Q>((void*)(parameter.values + value_offset(Index)));
      else
        return bind<Q>((void*)parameter.buffers[Index]);
    }
  };
  template <int Index, bool Present> struct from<threadgroup<Index, Present>> {
    template <class Q> static MSL_INLINE Q get(const Parameter& parameter, const Group&, const Thread&) {
      extern __shared__ __align__(16) unsigned char msl_dynamic_memory[];
      return bind<Q>(msl_dynamic_memory + parameter.memory[Index]);
    }
  };

  static MSL_INLINE void run(const Parameter& parameter) {
    const Launch& launch = parameter.launch;
    const uint32_t at[] = {blockIdx.x, blockIdx.y, blockIdx.z};
    Group group;
    for (int i = 0; i < 3; i++) {
      group.grid[i] = launch.grid[i];
      group.groups[i] = launch.groups[i];
      group.nominal_size[i] = launch.group[i];
      group.position[i] = at[i];
      const uint32_t left = launch.grid[i] - at[i] * launch.group[i];
      group.size[i] = left < launch.group[i] ? left : launch.group[i]; // as in Metal, the last one may be smaller
    }
    group.nthreads = group.size[0] * group.size[1] * group.size[2];
    group.nominal_nthreads = launch.group[0] * launch.group[1] * launch.group[2];
    Thread thread;
    thread.lane = own_lane();
    thread.index = (threadIdx.x & ~31u) | thread.lane;
#if defined(MSL_CHECKED)
    if (threadIdx.x == 0) group_threads = group.nthreads;
    __syncthreads();
#endif
    if (thread.index >= group.nthreads) return;
    thread.position[0] = thread.index;
    thread.position[1] = thread.position[2] = 0;
    if (group.size[1] * group.size[2] > 1) {
      thread.position[0] = thread.index % group.size[0];
      thread.position[1] = thread.index / group.size[0] % group.size[1];
      thread.position[2] = thread.index / group.size[0] / group.size[1];
    }
    Function(from<Tags>::template get<P>(parameter, group, thread)...);
  }
};

} // namespace msl_

// A `threadgroup` variable of a kernel, of type NAME_msl_t. As bytes: shared memory takes no initialisers.
#define MSL_THREADGROUP(name)                                                                                          \
  __shared__ __align__(16) unsigned char name##_msl_bytes[sizeof(name##_msl_t)];                                       \
  name##_msl_t& name = *(name##_msl_t*)name##_msl_bytes

// Launches overlap: the next kernel's threads may start as soon as all of this one's have, and wait here until the one
// before has finished and what it wrote is seen. Nothing is read before; the cache alone is asked for weights, which is
// right whoever writes them.
#if __CUDA_ARCH__ >= 900
namespace msl_ {
MSL_INLINE void wait_for_kernel_before(const Launch& launch) {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if (threadIdx.x < launch.weights) {
    const auto& weight = launch.weight[threadIdx.x];
    const uint64_t group = blockIdx.x + static_cast<uint64_t>(gridDim.x) * (blockIdx.y + gridDim.y * blockIdx.z);
    const uint64_t begin = weight.share * group;
    if (begin < weight.bytes) {
      const uint64_t left = weight.bytes - begin;
      const uint32_t bytes = left < weight.fetched ? left : weight.fetched;
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(weight.address + begin), "r"(bytes) : "memory");
    }
  }
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
} // namespace msl_
#define MSL_WAIT_FOR_KERNEL_BEFORE(launch) msl_::wait_for_kernel_before(launch)
#else
#define MSL_WAIT_FOR_KERNEL_BEFORE(launch)
#endif

#define MSL_KERNEL(name, arguments, ...)                                                                               \
  using msl_entry_kernel = msl_::kernel<&__VA_ARGS__, arguments>;                                                      \
  extern "C" __device__ const msl_::Description<msl_entry_kernel::count> msl_description =                             \
      msl_entry_kernel::description;                                                                                   \
  extern "C" __global__ void MSL_ENTRY_BOUNDS msl_entry(                                                               \
      const __grid_constant__ msl_entry_kernel::Parameter parameter) {                                                 \
    MSL_WAIT_FOR_KERNEL_BEFORE(parameter.launch);                                                                      \
    msl_entry_kernel::run(parameter);                                                                                  \
  }
