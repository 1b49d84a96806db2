// <metal_atomic>. MSL has relaxed order only (fences may be stronger); so do these.
#pragma once
#include "barrier.h"

namespace metal {

template <class T> struct atomic {
  using value_type = T;
  T value;
  atomic() = default;
  constexpr atomic(T v) : value(v) {}
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<bool> atomic_bool;
typedef atomic<float> atomic_float;
typedef atomic<ulong> atomic_ulong;

namespace detail {
template <class T> MSL_INLINE T* address_of(const volatile atomic<T>* object) { return const_cast<T*>(&object->value); }
template <class T> using operand = std::common_type_t<T>; // not deduced: converts to the atomic's type

// Applies `next` until nobody has come in between. Returns the old value.
template <class T, class F> MSL_INLINE T update(volatile atomic<T>* object, const F& next) {
  T* address = address_of(object);
  T old, wanted;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  do {
    wanted = next(old);
  } while (!__atomic_compare_exchange(address, &old, &wanted, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}
} // namespace detail

template <class T> MSL_INLINE T atomic_load_explicit(const volatile atomic<T>* object, memory_order) {
  T value;
  __atomic_load(detail::address_of(object), &value, __ATOMIC_RELAXED);
  return value;
}
template <class T>
MSL_INLINE void atomic_store_explicit(volatile atomic<T>* object, detail::operand<T> desired, memory_order) {
  __atomic_store(detail::address_of(object), &desired, __ATOMIC_RELAXED);
}
template <class T>
MSL_INLINE T atomic_exchange_explicit(volatile atomic<T>* object, detail::operand<T> desired, memory_order) {
  T old;
  __atomic_exchange(detail::address_of(object), &desired, &old, __ATOMIC_RELAXED);
  return old;
}
template <class T>
MSL_INLINE bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* object, T* expected,
                                                      detail::operand<T> desired, memory_order, memory_order) {
  return __atomic_compare_exchange(detail::address_of(object), expected, &desired, false, __ATOMIC_RELAXED,
                                   __ATOMIC_RELAXED);
}

#define MSL_FETCH(name, expression)                                                                                    \
  template <class T>                                                                                                   \
  MSL_INLINE T atomic_fetch_##name##_explicit(volatile atomic<T>* object, detail::operand<T> y, memory_order) {        \
    return detail::update(object, [y](T x) { return T(expression); });                                                 \
  }
MSL_FETCH(add, x + y)
MSL_FETCH(sub, x - y)
MSL_FETCH(and, x& y)
MSL_FETCH(or, x | y)
MSL_FETCH(xor, x ^ y)
MSL_FETCH(min, y < x ? y : x)
MSL_FETCH(max, x < y ? y : x)
#undef MSL_FETCH

// The 64-bit ones give nothing back.
template <class T>
MSL_INLINE void atomic_max_explicit(volatile atomic<T>* object, detail::operand<T> y, memory_order order) {
  atomic_fetch_max_explicit(object, y, order);
}
template <class T>
MSL_INLINE void atomic_min_explicit(volatile atomic<T>* object, detail::operand<T> y, memory_order order) {
  atomic_fetch_min_explicit(object, y, order);
}

} // namespace metal
