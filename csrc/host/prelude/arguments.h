// Binds what a launch provides to a kernel's parameters, and registers kernels.
//
// The translator writes, after each kernel, an alias of msl::args<...> with one tag per parameter; the types come from
// the function itself. MSL_KERNEL("name", alias, function) makes the kernel known to msl_get_module().
#pragma once
#include "../runtime_state.h"
#include "matrix.h"

namespace msl {

template <class T> struct pointee {
  using type = std::remove_reference_t<T>; // by reference or by value
};
template <class T> struct pointee<T*> {
  using type = T;
};
template <class P>
constexpr uint32_t pointee_size = [] {
  using T = typename pointee<std::remove_cv_t<P>>::type;
  if constexpr (std::is_void_v<T>)
    return 0u;
  else
    return static_cast<uint32_t>(sizeof(T));
}();
template <class P>
constexpr uint32_t pointee_alignment = [] {
  using T = typename pointee<std::remove_cv_t<P>>::type;
  if constexpr (std::is_void_v<T>)
    return 1u;
  else
    return static_cast<uint32_t>(alignof(T));
}();

// The parameter as pointer, reference or value of what lies at `address`.
template <class P> MSL_INLINE P bind(void* address) {
  if constexpr (std::is_pointer_v<P>)
    return (P)address;
  else
    return *(typename pointee<P>::type*)address;
}

// A buffer. Present is false where a function constant switches the argument off.
template <int Index, bool Present = true> struct buffer {
  static_assert(Index >= 0 && Index < MSL_MAX_BUFFERS, "buffer index: Metal allows 0 to 30");
  template <class P> static MSL_INLINE P get(const Group& group, const Thread&) {
    return bind<P>(static_cast<uint32_t>(Index) < group.nbuffers ? group.buffers[Index] : nullptr);
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

// A position or size as the scalar or vector that the parameter is.
template <class P> MSL_INLINE P coordinates(uint32_t x, uint32_t y, uint32_t z) {
  using V = std::remove_cv_t<std::remove_reference_t<P>>;
  if constexpr (metal::is_vector<V>) {
    const uint32_t all[] = {x, y, z};
    V v;
    for (int i = 0; i < metal::lanes_of<V>; i++) v.d[i] = static_cast<metal::element_of<V>>(all[i]);
    return v;
  } else {
    return static_cast<V>(x);
  }
}

// Built-in attributes, named as in MSL. `g`: the threadgroup, `t`: the thread.
#define MSL_BUILTIN(name, x, y, z)                                                                                     \
  struct name {                                                                                                        \
    template <class P> static MSL_INLINE P get([[maybe_unused]] const Group& g, [[maybe_unused]] const Thread& t) {    \
      return coordinates<P>(x, y, z);                                                                                  \
    }                                                                                                                  \
    template <class P> static constexpr msl_arg_info info() { return {MSL_ARG_BUILTIN, 0, 0, 0, 0, 0, 1}; }            \
  };
#define MSL_BUILTIN_3(name, expression) MSL_BUILTIN(name, expression(0), expression(1), expression(2))
#define MSL_BUILTIN_1(name, expression) MSL_BUILTIN(name, expression, 0, 0)

#define MSL_GRID_POSITION(i) g.position[i] * g.nominal_size[i] + t.position[i]
#define MSL_THREAD_POSITION(i) t.position[i]
#define MSL_GROUP_POSITION(i) g.position[i]
#define MSL_GRID(i) g.grid[i]
#define MSL_SIZE(i) g.size[i]
#define MSL_NOMINAL_SIZE(i) g.nominal_size[i]
#define MSL_GROUPS(i) g.groups[i]
#define MSL_ZERO(i) 0
MSL_BUILTIN_3(thread_position_in_grid, MSL_GRID_POSITION)
MSL_BUILTIN_3(thread_position_in_threadgroup, MSL_THREAD_POSITION)
MSL_BUILTIN_3(threadgroup_position_in_grid, MSL_GROUP_POSITION)
MSL_BUILTIN_3(threads_per_grid, MSL_GRID)
MSL_BUILTIN_3(threads_per_threadgroup, MSL_SIZE)
MSL_BUILTIN_3(dispatch_threads_per_threadgroup, MSL_NOMINAL_SIZE)
MSL_BUILTIN_3(threadgroups_per_grid, MSL_GROUPS)
MSL_BUILTIN_3(grid_origin, MSL_ZERO)
MSL_BUILTIN_3(grid_size, MSL_GRID)
MSL_BUILTIN_1(thread_index_in_threadgroup, t.index)
MSL_BUILTIN_1(thread_index_in_simdgroup, t.lane)
MSL_BUILTIN_1(thread_index_in_quadgroup, t.lane & 3)
MSL_BUILTIN_1(simdgroup_index_in_threadgroup, t.index / kLanes)
MSL_BUILTIN_1(quadgroup_index_in_threadgroup, t.index / 4)
MSL_BUILTIN_1(threads_per_simdgroup, kLanes)
MSL_BUILTIN_1(thread_execution_width, kLanes)
MSL_BUILTIN_1(simdgroups_per_threadgroup, (g.nthreads + kLanes - 1) / kLanes)
MSL_BUILTIN_1(dispatch_simdgroups_per_threadgroup, (g.nominal_nthreads + kLanes - 1) / kLanes)
MSL_BUILTIN_1(quadgroups_per_threadgroup, (g.nthreads + 3) / 4)
MSL_BUILTIN_1(dispatch_quadgroups_per_threadgroup, (g.nominal_nthreads + 3) / 4)
#undef MSL_BUILTIN
#undef MSL_BUILTIN_1
#undef MSL_BUILTIN_3
#undef MSL_GRID_POSITION
#undef MSL_THREAD_POSITION
#undef MSL_GROUP_POSITION
#undef MSL_GRID
#undef MSL_SIZE
#undef MSL_NOMINAL_SIZE
#undef MSL_GROUPS
#undef MSL_ZERO

template <class... Tags> struct args {};

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
    entries[count++] = {name, &Kernel::call, Kernel::nargs, Kernel::infos};
    return true;
  }
};

// A `threadgroup` variable of a kernel: one object for all threads of a threadgroup. The translator gives each a static
// byte, which identifies it and remembers where the running threadgroup keeps it.
template <class T> MSL_LANE_CODE T& threadgroup_local(char* key) {
  Group* group = current->simdgroup->group;
  const ThreadgroupLocal& known = group->locals[__atomic_load_n((unsigned char*)key, __ATOMIC_RELAXED)];
  if (__builtin_expect(known.key == key, 1)) return *(T*)known.address;
  return *(T*)msl_rt_threadgroup_local(group, (unsigned char*)key, sizeof(T));
}

} // namespace msl

#define MSL_JOIN_(a, b) a##b
#define MSL_JOIN(a, b) MSL_JOIN_(a, b)
#define MSL_KERNEL(name, arguments, ...)                                                                               \
  static const bool MSL_JOIN(msl_registered_, __COUNTER__) =                                                           \
      msl::Registry::add<msl::kernel<&__VA_ARGS__, arguments>>(name);

extern "C" __attribute__((visibility("default"), used)) const msl_module* msl_get_module(void) {
  static const msl_module module = {MSL_ABI, msl::Registry::count, msl::Registry::entries};
  return &module;
}
