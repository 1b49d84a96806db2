// What C++ has no words for. Sums of pairs of 16-bit floats in one instruction, where the GPU has it. The bits are
// those of the general way, which computes in float and rounds: a float holds more than twice their digits. Those of a
// product with a sum are, where the result needs no rounding, as that of shaders/quant/format.h.
#pragma once
#include "vector.h"

namespace msl_ {

// Bytes from anywhere (shaders/quant/format.h), by the words that they lie in, none of which has none of them.
template <int N> struct OddWords {
  uint32_t q[N + 1];
  uint32_t shift;
  MSL_INLINE vec<uint32_t, 2> halves(int j, bool) const {
    const uint32_t bytes = __funnelshift_r(q[j], q[j + 1], shift);
    return {bytes, bytes >> 8};
  }
};

} // namespace msl_

namespace msl_::vectors {

#define MSL_PACKED(T, op, instruction)                                                                                 \
  MSL_INLINE vec<T, 2> operator op(const vec<T, 2>& a, const vec<T, 2>& b) {                                           \
    uint32_t result;                                                                                                   \
    asm(instruction " %0, %1, %2;" : "=r"(result) : "r"(as_type<uint32_t>(a)), "r"(as_type<uint32_t>(b)));             \
    return as_type<vec<T, 2>>(result);                                                                                 \
  }
#if __CUDA_ARCH__ >= 530
MSL_PACKED(half, +, "add.rn.f16x2")
MSL_PACKED(half, -, "sub.rn.f16x2")
#endif
#if __CUDA_ARCH__ >= 900
MSL_PACKED(bfloat, +, "add.rn.bf16x2")
MSL_PACKED(bfloat, -, "sub.rn.bf16x2")
#endif
#undef MSL_PACKED

// Where a chunk of a row begins (shaders/linear/loader.h): constants behind an element are part of a load here, those
// behind an index that is scaled are not.
template <class T> MSL_INLINE const T* chunk_at(const T* row, const vec<uint32_t, 2>& at) { return row + at.d[1]; }

// Numbers of 16 bits (shaders/quant/format.h), one by one.
template <int N> MSL_INLINE void read_halves(const uint16_t* from, const vec<uint32_t, 2>& at, uint32_t (&q)[N]) {
  from += at.d[0];
  for (short j = 0; j < N; ++j) q[j] = uint32_t(from[j]);
}

template <int N, bool Pairs> MSL_INLINE OddWords<N> read_odd_bytes(const uint8_t* from, bool, const vec<uint32_t, 2>&) {
  const uint32_t past = static_cast<uint32_t>(reinterpret_cast<uint64_t>(from)) & 3;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(from - past);
  OddWords<N> bytes;
  for (int j = 0; j < N; j++) bytes.q[j] = words[j];
  bytes.q[N] = past ? words[N] : 0;
  bytes.shift = 8 * past;
  return bytes;
}

// In one instruction (shaders/quant/format.h).
MSL_INLINE uint32_t word_behind(const vec<uint32_t, 2>& words, uint32_t bits) {
  return static_cast<uint32_t>((static_cast<uint64_t>(words.d[1]) << 32 | words.d[0]) >> bits);
}

// In registers, with bytes in the place of blocks (shaders/quant/format.h): what comes out of a shuffle isn't computed
// again.
MSL_INLINE vec<uint32_t, 2> kept(const vec<uint32_t, 2>& x, uint32_t block_size) {
  const uint32_t lane = threadIdx.x % 32;
  return {__shfl_sync(0xffffffffu, x.d[0], lane), __shfl_sync(0xffffffffu, x.d[1] * block_size, lane)};
}
template <class Block> MSL_INLINE const Block* next_unit(const Block* at, const vec<uint32_t, 2>& x) {
  return reinterpret_cast<const Block*>(reinterpret_cast<const char*>(at) + x.d[1]);
}

// 16 bytes of device memory in one write, which assigning elements isn't: an overload of shaders/common/vec.h.
MSL_INLINE void write_whole(vec<uint32_t, 4>* p, const vec<uint32_t, 4>& v) {
  asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};"
               :
               : "l"(__cvta_generic_to_global(p)), "r"(v.d[0]), "r"(v.d[1]), "r"(v.d[2]), "r"(v.d[3])
               : "memory");
}

} // namespace msl_::vectors

#if __CUDA_ARCH__ >= 530
namespace metal {
MSL_INLINE vec<half, 2> fma(const vec<half, 2>& a, const vec<half, 2>& b, const vec<half, 2>& c) {
  uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;"
      : "=r"(result)
      : "r"(as_type<uint32_t>(a)), "r"(as_type<uint32_t>(b)), "r"(as_type<uint32_t>(c)));
  return as_type<vec<half, 2>>(result);
}
} // namespace metal
#endif
