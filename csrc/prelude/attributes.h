// The tags that the translator writes for a kernel's parameters: built-in attributes, as positions and sizes. What the
// platform's Group and Thread hold is given to a parameter in its own type.
#pragma once
#include "matrix.h"

namespace msl_ {

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

// A position or size as the scalar or vector that the parameter is.
template <class P> MSL_INLINE P coordinates(uint32_t x, uint32_t y, uint32_t z) {
  using V = std::remove_cv_t<std::remove_reference_t<P>>;
  if constexpr (is_vector<V>) {
    const uint32_t all[] = {x, y, z};
    V v;
    for (int i = 0; i < lanes_of<V>; i++) v.d[i] = static_cast<element_of<V>>(all[i]);
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

// A kernel's parameters, one tag each: the alias NAME_msl_args that follows it.
template <class... Tags> struct args {};

} // namespace msl_

#define MSL_JOIN_(a, b) a##b
#define MSL_JOIN(a, b) MSL_JOIN_(a, b)
