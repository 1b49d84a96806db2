// What the runtime provides: ids, threadgroup memory, barriers, lanes that diverge.
#include <metal_stdlib>
using namespace metal;

struct Ids {
  uint3 grid_position, local_position, group_position, grid, size, nominal_size, groups;
  uint index, lane, simdgroup, simdgroups;
};

kernel void ids(
    device Ids* out [[buffer(0)]],
    uint3 grid_position [[thread_position_in_grid]],
    uint3 local_position [[thread_position_in_threadgroup]],
    uint3 group_position [[threadgroup_position_in_grid]],
    uint3 grid [[threads_per_grid]],
    uint3 size [[threads_per_threadgroup]],
    uint3 nominal_size [[dispatch_threads_per_threadgroup]],
    uint3 groups [[threadgroups_per_grid]],
    uint index [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  const uint at = grid_position.x + grid.x * (grid_position.y + grid.y * grid_position.z);
  out[at] = {grid_position, local_position, group_position, grid, size, nominal_size, groups, index, lane, simdgroup, simdgroups};
}

kernel void count(device atomic_uint* counter [[buffer(0)]]) {
  atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

// Reverses each threadgroup's values, through static and through dynamic threadgroup memory.
kernel void reverse(
    device const float* x [[buffer(0)]],
    device float* y [[buffer(1)]],
    threadgroup float* shared [[threadgroup(0)]],
    uint gid [[thread_position_in_grid]],
    uint i [[thread_index_in_threadgroup]],
    uint n [[threads_per_threadgroup]]) {
  threadgroup float local[1024];
  shared[i] = x[gid];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  local[i] = shared[n - 1 - i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[gid] = local[i];
}

// Many barriers and simd functions of uneven simdgroups: any lane that is resumed out of turn spoils the sum.
kernel void rounds(
    device uint* y [[buffer(0)]],
    uint gid [[thread_position_in_grid]],
    uint i [[thread_index_in_threadgroup]],
    uint n [[threads_per_threadgroup]]) {
  threadgroup uint turn[1024];
  uint value = i;
  for (uint round = 0; round < 8; ++round) {
    turn[i] = value;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    value = turn[(i + 1) % n] + (round % 2 ? simd_max(round) : round);
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  y[gid] = value;
}

kernel void poison(device uint* y [[buffer(0)]], threadgroup uint* shared [[threadgroup(0)]]) {
  threadgroup uint local[4];
  y[0] = shared[0];
  y[1] = local[3];
  shared[0] = local[3] = 1;
}

kernel void early_return(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  if (i >= 40) return;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = 1;
}

kernel void two_barriers(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  if (i < 32)
    threadgroup_barrier(mem_flags::mem_threadgroup);
  else
    threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = 1;
}

// Lanes leave a loop one after another and meet again behind it, as they do on a GPU.
kernel void divergent_sums(device uint* y [[buffer(0)]], uint lane [[thread_index_in_simdgroup]]) {
  uint sum = 0;
  for (uint k = 0; k < lane % 4 + 1; ++k)
    sum += simd_sum(1u);
  if (lane < 8) {
    sum += 100 * simd_max(lane);
  } else {
    sum += 1000 * simd_min(ushort(lane));
  }
  y[lane] = sum + 1000000 * simd_sum(1u);
}

kernel void too_much_memory(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float a[8192];
  threadgroup float b[16];
  a[i] = b[i % 16] = 1;
  y[i] = a[i] + b[i % 16];
}

struct Params {
  uint a, b, c;
};
kernel void arguments(
    device const float* x [[buffer(0)]],
    constant Params& params [[buffer(2)]],
    device float4* y [[buffer(3)]],
    uint i [[thread_position_in_grid]]) {
  y[i] = x[i] + params.b;
}

kernel void misaligned(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  device float4* at = (device float4*)(y + 1);
  at[i] = float4(1);
}

// Faults of checked builds: y is of ones.
kernel void zero_divisor(device float* y) {
  const int zero = int(y[0]) - 1;
  y[0] = float(7 / zero);
}
kernel void zero_in_vector(device float* y) {
  uint2 v = uint2(7, 8);
  v %= uint2(uint(y[0]), uint(y[0]) - 1u);
  y[0] = float(v.y);
}
kernel void does_not_fit(device float* y) {
  device int* to = (device int*)y;
  to[1] = y[0] * 3e9f;
  y[0] = 1;
}
kernel void fits(device float* y, uint i [[thread_position_in_grid]]) {
  if (i != 0)
    return;
  y[0] = (float(int(y[0] * 3e9f) / int(y[1])) + float(int2(3, 4).y % int(y[1]))) / (y[0] - 1.0f);
}
