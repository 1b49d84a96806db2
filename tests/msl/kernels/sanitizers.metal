// Kernels with one fault each, and two without.
#include <metal_stdlib>
using namespace metal;

kernel void write_past_buffer(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  y[i] = 1;  // fault
}

kernel void read_past_buffer(device float* y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
  y[0] = y[i];  // fault
}

kernel void write_past_array(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float shared[64];
  shared[i + 1] = 1;  // fault
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = shared[i];
}

kernel void write_past_argument(
    device float* y [[buffer(0)]],
    threadgroup float* shared [[threadgroup(0)]],
    uint i [[thread_index_in_threadgroup]]) {
  shared[i + 1] = 1;  // fault
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = shared[i];
}

kernel void missing_barrier(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float shared[64];
  shared[i] = i;  // fault
  y[i] = shared[(i + 1) % 64];
}

kernel void neighbours(device float* y [[buffer(0)]], uint i [[thread_index_in_threadgroup]]) {
  threadgroup float shared[64];
  shared[i] = i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = shared[(i + 1) % 64];
}

kernel void row_sum(
    device float* y [[buffer(0)]],
    uint i [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float part[2];
  threadgroup float tile[2][32];
  const float sum = simd_sum(y[i]);
  if (lane == 0) part[simdgroup] = sum;
  tile[simdgroup][lane] = sum;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  const float same = tile[simdgroup][31 - lane];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = part[0] + part[1] + sum - same;
}
