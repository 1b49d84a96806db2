// <metal_atomic>. MSL has relaxed order only (fences may be stronger); so do these.
#pragma once
#include "atomic_access.h"
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

} // namespace metal

namespace msl_ {
template <class T> MSL_INLINE T* address_of(const volatile metal::atomic<T>* object) {
  return const_cast<T*>(&object->value);
}
template <class T> using operand = std::common_type_t<T>; // not deduced: converts to the atomic's type
} // namespace msl_

namespace metal {

template <class T> MSL_INLINE T atomic_load_explicit(const volatile atomic<T>* object, memory_order) {
  return msl_::atomic_load(msl_::address_of(object));
}
template <class T>
MSL_INLINE void atomic_store_explicit(volatile atomic<T>* object, msl_::operand<T> desired, memory_order) {
  msl_::atomic_store(msl_::address_of(object), desired);
}
template <class T>
MSL_INLINE T atomic_exchange_explicit(volatile atomic<T>* object, msl_::operand<T> desired, memory_order) {
  return msl_::atomic_exchange(msl_::address_of(object), desired);
}
template <class T>
MSL_INLINE bool atomic_compare_exchange_weak_explicit(volatile atomic<T>* object, T* expected, msl_::operand<T> desired,
                                                      memory_order, memory_order) {
  return msl_::atomic_compare_exchange(msl_::address_of(object), expected, desired);
}

#define MSL_FETCH(name, Op)                                                                                            \
  template <class T>                                                                                                   \
  MSL_INLINE T atomic_fetch_##name##_explicit(volatile atomic<T>* object, msl_::operand<T> y, memory_order) {          \
    return msl_::atomic_update<msl_::Op>(msl_::address_of(object), y);                                                 \
  }
MSL_FETCH(add, Sum)
MSL_FETCH(sub, Difference)
MSL_FETCH(and, And)
MSL_FETCH(or, Or)
MSL_FETCH(xor, Xor)
MSL_FETCH(min, Min)
MSL_FETCH(max, Max)
#undef MSL_FETCH

// The 64-bit ones give nothing back.
template <class T>
MSL_INLINE void atomic_max_explicit(volatile atomic<T>* object, msl_::operand<T> y, memory_order order) {
  atomic_fetch_max_explicit(object, y, order);
}
template <class T>
MSL_INLINE void atomic_min_explicit(volatile atomic<T>* object, msl_::operand<T> y, memory_order order) {
  atomic_fetch_min_explicit(object, y, order);
}

} // namespace metal
