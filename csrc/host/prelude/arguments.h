// Binds what a launch provides to a kernel's parameters, and registers kernels.
//
// The translator writes, after each kernel, an alias of msl_::args<...> with one tag per parameter; the types come from
// the function itself. MSL_KERNEL("name", alias, function) makes the kernel known to msl_get_module().
#pragma once
#include "attributes.h"

namespace msl_ {

// The parameter as pointer, reference or value of what lies at `address`.
template <class P> MSL_INLINE P bind(void* address) {
  if constexpr (std::is_pointer_v<P>)
    return (P)address;
  else
    return *(typename pointee<P>::type*)address;
}

// Which buffers a kernel uses, the compiler says: each address passes through an assembler text, which goes when
// nothing is done with the address, and which otherwise leaves the index in a section of the library.
#if defined(__ELF__)
template <int Index> MSL_INLINE void* used(void* address) {
  asm(".pushsection msl_used, \"a\"\n\t.long %c1\n\t.popsection" : "+r"(address) : "i"(Index));
  return address;
}
extern "C" {
extern const uint32_t msl_used_begin[] __asm__("__start_msl_used") __attribute__((weak, visibility("hidden")));
extern const uint32_t msl_used_end[] __asm__("__stop_msl_used") __attribute__((weak, visibility("hidden")));
}
MSL_INLINE uint32_t used_buffers() {
  const uint32_t *at = msl_used_begin, *end = msl_used_end;
  asm("" : "+r"(at), "+r"(end)); // two objects to the compiler, which would take them for different
  uint32_t mask = 0;
  for (; at != end; at++) mask |= 1u << *at;
  return mask;
}
#else
template <int Index> MSL_INLINE void* used(void* address) { return address; }
constexpr uint32_t used_buffers() { return ~0u; }
#endif

// A buffer. Present is false where a function constant switches the argument off, or the kernel's text never names it:
// then it isn't used, though its address may be carried along.
template <int Index, bool Present = true> struct buffer {
  static_assert(Index >= 0 && Index < MSL_MAX_BUFFERS, "buffer index: Metal allows 0 to 30");
  template <class P> static MSL_INLINE P get(const Group& group, const Thread&) {
    void* address = static_cast<uint32_t>(Index) < group.nbuffers ? group.buffers[Index] : nullptr;
    if constexpr (Present) address = used<Index>(address);
    return bind<P>(address);
  }
  template <class P> static constexpr msl_arg_info info() {
    return {MSL_ARG_BUFFER, !std::is_pointer_v<P>, !Present, 0, Index, pointee_size<P>, pointee_alignment<P>};
  }
};

template <int Index, bool Present = true> struct threadgroup {
  static_assert(Index >= 0 && Index < MSL_MAX_BUFFERS, "threadgroup memory index: Metal allows 0 to 30");
  template <class P> static MSL_INLINE P get(const Group& group, const Thread&) {
    return bind<P>(group.threadgroup_memory[Index]);
  }
  template <class P> static constexpr msl_arg_info info() {
    return {MSL_ARG_THREADGROUP, !std::is_pointer_v<P>, !Present, 0, Index, pointee_size<P>, pointee_alignment<P>};
  }
};

template <auto Function, class Args> struct kernel;
template <class... P, void (*Function)(P...), class... Tags> struct kernel<Function, args<Tags...>> {
  static_assert(sizeof...(P) == sizeof...(Tags), "a kernel needs one tag per parameter");
  static constexpr uint32_t nargs = sizeof...(P);
  static constexpr msl_arg_info infos[nargs + 1] = {Tags::template info<P>()...};

  // Runs this thread, and on the same stack those after it, as long as none has to be waited for.
  static void call(const Group* group, Thread* thread) {
    do {
      Function(Tags::template get<P>(*group, *thread)...);
      thread = finish(thread);
    } while (thread != nullptr);
  }
};

struct Registry {
  static constexpr uint32_t capacity = 16384;
  static inline msl_kernel_entry entries[capacity];
  static inline uint32_t count = 0;

  template <class Kernel> static bool add(const char* name) {
    if (count == capacity) return false;
    entries[count++] = {name, &Kernel::call, Kernel::nargs, Kernel::infos, used_buffers()};
    return true;
  }
};

// A `threadgroup` variable of a kernel, of type NAME_msl_t: one object for all threads of a threadgroup. A static byte
// identifies it and remembers where the running threadgroup keeps it.
#define MSL_THREADGROUP(name)                                                                                          \
  static char name##_msl_key;                                                                                          \
  name##_msl_t& name = msl_::threadgroup_local<name##_msl_t>(&name##_msl_key)
template <class T> MSL_LANE_CODE T& threadgroup_local(char* key) {
  Group* group = current()->simdgroup->group;
  const ThreadgroupLocal& known = group->locals[__atomic_load_n((unsigned char*)key, __ATOMIC_RELAXED)];
  if (__builtin_expect(known.key == key, 1)) return *(T*)known.address;
  return *(T*)msl_rt_threadgroup_local(group, (unsigned char*)key, sizeof(T));
}

} // namespace msl_

#define MSL_KERNEL(name, arguments, ...)                                                                               \
  static const bool MSL_JOIN(msl_registered_, __COUNTER__) =                                                           \
      msl_::Registry::add<msl_::kernel<&__VA_ARGS__, arguments>>(name);

extern "C" __attribute__((visibility("default"), used)) const msl_module* msl_get_module(void) {
  static const msl_module module = {MSL_ABI, msl_::Registry::count, msl_::Registry::entries};
  return &module;
}
