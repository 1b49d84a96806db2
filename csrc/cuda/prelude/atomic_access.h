// Atomic access to memory, relaxed.
#pragma once
#include "reductions.h"

namespace msl_ {

template <class T> MSL_INLINE T atomic_load(T* address) { return *static_cast<volatile T*>(address); }
template <class T> MSL_INLINE void atomic_store(T* address, T value) { *static_cast<volatile T*>(address) = value; }

template <class T> using atomic_word = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned int>;

// What was there; it becomes `desired` if it was `expected`.
template <class T> MSL_INLINE T compare_and_swap(T* address, T expected, T desired) {
  if constexpr (sizeof(T) >= 4) {
    using Word = atomic_word<T>;
    const Word old = atomicCAS(reinterpret_cast<Word*>(address), __builtin_bit_cast(Word, expected),
                               __builtin_bit_cast(Word, desired));
    return __builtin_bit_cast(T, old);
  } else { // a byte of a word
    static_assert(sizeof(T) == 1, "atomics are of 1, 4 or 8 bytes");
    const auto place = reinterpret_cast<uintptr_t>(address);
    auto* word = reinterpret_cast<unsigned int*>(place & ~uintptr_t(3));
    const unsigned int shift = static_cast<unsigned int>(place & 3) * 8, mask = 0xffu << shift;
    const unsigned int wanted = __builtin_bit_cast(unsigned char, expected);
    const unsigned int bits = static_cast<unsigned int>(__builtin_bit_cast(unsigned char, desired)) << shift;
    unsigned int seen = *static_cast<volatile unsigned int*>(word), before;
    do {
      before = seen;
      if ((before & mask) >> shift != wanted) break;
      seen = atomicCAS(word, before, (before & ~mask) | bits);
    } while (seen != before);
    return __builtin_bit_cast(T, static_cast<unsigned char>((before & mask) >> shift));
  }
}

template <class T> MSL_INLINE bool same_bits(T a, T b) {
  if constexpr (sizeof(T) >= 4)
    return __builtin_bit_cast(atomic_word<T>, a) == __builtin_bit_cast(atomic_word<T>, b);
  else
    return a == b;
}

// On failure `expected` becomes what is there.
template <class T> MSL_INLINE bool atomic_compare_exchange(T* address, T* expected, T desired) {
  const T old = compare_and_swap(address, *expected, desired);
  const bool swapped = same_bits(old, *expected);
  *expected = old;
  return swapped;
}

template <class T> MSL_INLINE T atomic_exchange(T* address, T value) {
  T old = atomic_load(address);
  while (!atomic_compare_exchange(address, &old, value)) {
  }
  return old;
}

template <class Op, class T> constexpr bool has_atomic_instruction = false;
#define MSL_ATOMIC_INSTRUCTION(Op, T, function)                                                                        \
  template <> constexpr bool has_atomic_instruction<Op, T> = true;                                                     \
  MSL_INLINE T atomic_instruction(Op, T* address, T operand) { return function(address, operand); }
MSL_ATOMIC_INSTRUCTION(Sum, int, atomicAdd)
MSL_ATOMIC_INSTRUCTION(Sum, uint, atomicAdd)
MSL_ATOMIC_INSTRUCTION(Sum, float, atomicAdd)
MSL_ATOMIC_INSTRUCTION(Difference, int, atomicSub)
MSL_ATOMIC_INSTRUCTION(Difference, uint, atomicSub)
MSL_ATOMIC_INSTRUCTION(Min, int, atomicMin)
MSL_ATOMIC_INSTRUCTION(Min, uint, atomicMin)
MSL_ATOMIC_INSTRUCTION(Max, int, atomicMax)
MSL_ATOMIC_INSTRUCTION(Max, uint, atomicMax)
MSL_ATOMIC_INSTRUCTION(And, int, atomicAnd)
MSL_ATOMIC_INSTRUCTION(And, uint, atomicAnd)
MSL_ATOMIC_INSTRUCTION(Or, int, atomicOr)
MSL_ATOMIC_INSTRUCTION(Or, uint, atomicOr)
MSL_ATOMIC_INSTRUCTION(Xor, int, atomicXor)
MSL_ATOMIC_INSTRUCTION(Xor, uint, atomicXor)
#undef MSL_ATOMIC_INSTRUCTION

// Where there is no instruction, Op::combine is applied until nobody has come in between. Returns the old value.
template <class Op, class T> MSL_INLINE T atomic_update(T* address, T operand) {
  if constexpr (has_atomic_instruction<Op, T>) {
    return atomic_instruction(Op(), address, operand);
  } else {
    T old = atomic_load(address);
    while (!atomic_compare_exchange(address, &old, Op::combine(old, operand))) {
    }
    return old;
  }
}

} // namespace msl_
