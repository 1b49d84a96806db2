// Gated product of the largest gates: y = act(max(gate - cutoff, 0)) * up, where the cutoff of a row lies some standard
// deviations above the mean of its gates. In f32, rounded once. Squares are of differences from the mean, as in
// layer_norm.metal. A row is read three times, by the same thread each time. One threadgroup a row.
#include "linear/sparse_glu.h"

#include "common/activation.h"
#include "common/reduce.h"

using namespace metal;
using namespace foundry;

// foundry-lint: instance(sparse_glu<half, GeluTanh>)
// foundry-lint: instance(sparse_glu<float, Silu>)
template <typename T, typename Activation>
[[kernel]] void sparse_glu(
    device const T* gate [[buffer(0)]],
    device const T* up [[buffer(1)]],
    device T* y [[buffer(2)]],
    constant SparseGluArgs& args [[buffer(3)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float partial[2 * 32];
  device const T* gate_row = gate + row_offset(args.gate, row);
  device const T* up_row = up + row_offset(args.up, row);
  float sum = 0.0f, square = 0.0f;
  for (uint i = tid; i < args.n; i += threads)
    sum += float(gate_row[i]);
  const float mean = threadgroup_sum(sum, partial, lane, simdgroup, simdgroups) / float(args.n);
  for (uint i = tid; i < args.n; i += threads)
    square = fma(float(gate_row[i]) - mean, float(gate_row[i]) - mean, square);
  const float variance = threadgroup_sum(square, partial + 32, lane, simdgroup, simdgroups) / float(args.n);
  const float cutoff = fma(sqrt(variance), args.deviations, mean);
  for (uint i = tid; i < args.n; i += threads) {
    const float beyond = float(gate_row[i]) - cutoff;
    y[row * args.n + i] = T(Gate<Activation>::apply(beyond < 0.0f ? 0.0f : beyond, float(up_row[i])));
  }
}
