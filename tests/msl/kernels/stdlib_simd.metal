// Functions across lanes. Launched with full simdgroups and with a ragged last one.
#include "check.h"
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>

kernel void reductions(device atomic_uint* failed [[buffer(0)]], uint lane [[thread_index_in_simdgroup]], uint n [[threads_per_threadgroup]]) {
  CHECK(simd_sum(lane) == n * (n - 1) / 2 && simd_max(lane) == n - 1 && simd_min(float(lane)) == 0);
  CHECK(simd_product(lane < 3 ? 2.0f : 1.0f) == (n < 3 ? exp2(float(n)) : 8) && simd_or(1u << lane) == ~0u >> (32 - n));
  CHECK(simd_and(lane | 32) == (n == 1 ? 32 : 32u) && simd_xor(lane < 3 ? 1 << lane : 0) == (n < 3 ? int(1 << n) - 1 : 7));
  CHECK(all(simd_sum(float2(1, lane)) == float2(n, n * (n - 1) / 2)) && simd_sum(bfloat(1)) == n && simd_sum(0.5h) == n / 2.0);
  CHECK(simd_sum(float4(lane).zw).x == n * (n - 1) / 2 && simd_max(ushort2(lane, 1)).y == 1);
  CHECK(simd_prefix_inclusive_sum(1u) == lane + 1 && simd_prefix_exclusive_sum(2.0f) == 2 * lane);
  CHECK(simd_prefix_exclusive_product(lane < 4 ? 2u : 1u) == 1u << min(lane, 4u));
  CHECK(simd_prefix_inclusive_product(lane < 4 ? 2u : 1u) == 1u << min(lane + 1, 4u));
  CHECK(simd_any(lane == n - 1) && !simd_any(lane > 99) && simd_all(lane < 99) && !simd_all(lane > 0));
  CHECK(ulong(simd_ballot(lane % 2 == 0)) == (0x55555555u & (~0u >> (32 - n))));
  CHECK(ulong(simd_active_threads_mask()) == ~0u >> (32 - n) && simd_is_first() == (lane == 0));
}

kernel void shuffles(device atomic_uint* failed [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]]) {
  CHECK(simd_shuffle(lane, 31 - lane) == 31 - lane && simd_broadcast(lane, 5) == 5 && simd_broadcast_first(lane) == 0);
  CHECK(simd_shuffle_xor(lane, 7) == (lane ^ 7) && simd_shuffle_up(lane, 3) == (lane < 3 ? lane : lane - 3));
  CHECK(simd_shuffle_down(lane, 3) == (lane > 28 ? lane : lane + 3));
  CHECK(simd_shuffle_rotate_down(lane, 3) == (lane + 3) % 32 && simd_shuffle_rotate_up(lane, 3) == (lane + 29) % 32);
  CHECK(simd_shuffle_and_fill_down(int(lane), 100 + int(lane), 4) == (lane < 28 ? lane + 4 : 100 + lane - 28));
  CHECK(simd_shuffle_and_fill_up(int(lane), 100 + int(lane), 4) == (lane < 4 ? 100 + lane + 28 : lane - 4));
  CHECK(simd_shuffle_and_fill_up(int(lane), 100 + int(lane), 1, 8) == (lane % 8 ? lane - 1 : 100 + lane + 7));
  CHECK(all(simd_shuffle(float4(lane), 9) == 9) && simd_shuffle(ulong(lane) << 40, 2) == 2ul << 40);
  CHECK(float(simd_shuffle_xor(bfloat(lane), 1)) == (lane ^ 1) && simd_shuffle(char(-lane), 4) == -4);
}

kernel void quads(device atomic_uint* failed [[buffer(0)]], ushort lane [[thread_index_in_simdgroup]], ushort in_quad [[thread_index_in_quadgroup]], ushort quad [[quadgroup_index_in_threadgroup]]) {
  CHECK(in_quad == lane % 4 && quad == lane / 4);
  const ushort first = quad * 4;
  CHECK(quad_sum(int(lane)) == first * 4 + 6 && quad_max(lane) == first + 3 && quad_product(2) == 16);
  CHECK(quad_broadcast(lane, 2) == first + 2 && quad_shuffle_xor(lane, 3) == (lane ^ 3) && quad_any(in_quad == 3));
  CHECK(quad_shuffle_up(lane, 1) == (in_quad ? lane - 1 : lane) && quad_shuffle_down(lane, 1) == (in_quad < 3 ? lane + 1 : lane));
  CHECK(quad_shuffle_rotate_up(lane, 1) == first + (in_quad + 3) % 4 && !quad_all(in_quad == 0) && quad_is_first() == (in_quad == 0));
  CHECK(quad_prefix_inclusive_sum(1) == in_quad + 1 && uint(quad_ballot(in_quad > 1)) == 12);
}

// Bits of one lane's view of 8x8 matrices in memory, by the documented layout.
kernel void simdgroup_matrices(device atomic_uint* failed [[buffer(0)]], device float* memory [[buffer(1)]], ushort lane [[thread_index_in_simdgroup]]) {
  const ushort quad = lane / 4, row = (quad & 4) + (lane / 2) % 4, column = (quad & 2) * 2 + (lane % 2) * 2;
  simdgroup_float8x8 a, b, c, d;
  simdgroup_load(a, memory, 20);
  CHECK(a.thread_elements()[0] == memory[row * 20 + column] && a.thread_elements()[1] == memory[row * 20 + column + 1]);
  simdgroup_load(b, memory, 20, ulong2(8, 1), true);
  CHECK(b.thread_elements()[1] == memory[(1 + column + 1) * 20 + 8 + row]);
  c = make_filled_simdgroup_matrix<float, 8, 8>(2.0f);
  simdgroup_multiply_accumulate(d, a, b, c);
  simdgroup_half8x8 ah;
  ah.thread_elements() = half2(a.thread_elements());
  simdgroup_bfloat8x8 eye(1.0bf), eb;
  simdgroup_multiply(eb, ah, eye);
  CHECK(float(eb.thread_elements()[0]) == float(bfloat(ah.thread_elements()[0])));
  for (ushort k = 0; k < 2; ++k) {
    float expected = 2;
    for (ushort i = 0; i < 8; ++i)
      expected += memory[row * 20 + i] * memory[(1 + column + k) * 20 + 8 + i];
    CHECK(abs(d.thread_elements()[k] - expected) < 1e-4);
  }
  threadgroup float out[3 * 64];
  simdgroup_store(d, out, 8);
  simdgroup_store(d, out + 64, 8, ulong2(0, 0), true);
  simdgroup_store(make_diagonal_simdgroup_matrix<float, 8, 8>(3.0f), out + 128, 8);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  CHECK(out[row * 8 + column] == d.thread_elements()[0] && out[64 + column * 8 + row] == d.thread_elements()[0]);
  CHECK(out[128 + lane] == (lane % 9 ? 0 : 3));
}

kernel void atomics(device atomic_uint* failed [[buffer(0)]], device atomic_int* i [[buffer(1)]], device atomic_float* f [[buffer(2)]], device atomic_ulong* u [[buffer(3)]], uint gid [[thread_position_in_grid]]) {
  threadgroup atomic_uint local;
  threadgroup atomic_bool flag;
  atomic_store_explicit(&local, 0u, memory_order_relaxed);
  atomic_store_explicit(&flag, false, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  atomic_fetch_add_explicit(i, 2, memory_order_relaxed);
  atomic_fetch_max_explicit(i + 1, int(gid), memory_order_relaxed);
  atomic_fetch_min_explicit(i + 2, -int(gid), memory_order_relaxed);
  atomic_fetch_xor_explicit(i + 3, 1 << (gid % 5), memory_order_relaxed);
  atomic_fetch_sub_explicit(f, 0.5f, memory_order_relaxed);
  atomic_max_explicit(u, ulong(gid) << 33, memory_order_relaxed);
  atomic_fetch_or_explicit(&local, 1u << (gid % 32), memory_order_relaxed);
  atomic_exchange_explicit(&flag, true, memory_order_relaxed);
  atomic_thread_fence(mem_flags::mem_threadgroup);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  CHECK(atomic_load_explicit(&local, memory_order_relaxed) == ~0u && atomic_load_explicit(&flag, memory_order_relaxed));
  int expected = atomic_load_explicit(i + 4, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(i + 4, &expected, expected + 1, memory_order_relaxed, memory_order_relaxed))
    ;
}
