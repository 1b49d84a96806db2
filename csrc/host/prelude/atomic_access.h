// Atomic access to memory, by the compiler's builtins.
#pragma once
#include "reductions.h"

namespace msl_ {

template <class T> MSL_INLINE T atomic_load(T* address) {
  T value;
  __atomic_load(address, &value, __ATOMIC_RELAXED);
  return value;
}
template <class T> MSL_INLINE void atomic_store(T* address, T value) {
  __atomic_store(address, &value, __ATOMIC_RELAXED);
}
template <class T> MSL_INLINE T atomic_exchange(T* address, T value) {
  T old;
  __atomic_exchange(address, &value, &old, __ATOMIC_RELAXED);
  return old;
}
// On failure `expected` becomes what is there.
template <class T> MSL_INLINE bool atomic_compare_exchange(T* address, T* expected, T desired) {
  return __atomic_compare_exchange(address, expected, &desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
}

// Applies Op::combine until nobody has come in between. Returns the old value.
template <class Op, class T> MSL_INLINE T atomic_update(T* address, T operand) {
  T old = atomic_load(address);
  while (!atomic_compare_exchange(address, &old, Op::combine(old, operand))) {
  }
  return old;
}

} // namespace msl_
