// Elements of rows in another order: y[r][i] = x[r][order[i]]. The row behind the last, if there is one, is that of the
// weight of a norm, which commutes with an order: so normalising kernels take both results as they take x and the weight.
#include "linear/permute_columns.h"

using namespace metal;
using namespace foundry;

// foundry-lint: instance(permute_columns<half>)
template <typename T>
[[kernel]] void permute_columns(
    device const T* x [[buffer(0)]],
    device const int* order [[buffer(1)]],
    device const T* norm_weight [[buffer(2)]],
    device T* y [[buffer(3)]],
    device T* norm_weights [[buffer(4)]],
    constant PermuteColumnsArgs& args [[buffer(5)]],
    uint gid [[thread_position_in_grid]]) {
  const uint row = gid / args.threads_per_row;
  const uint first = gid % args.threads_per_row * permute_per_thread;
  device const T* from = row < args.rows ? x + ulong(row) * args.n : norm_weight;
  device T* to = row < args.rows ? y + ulong(row) * args.n : norm_weights;
  for (uint i = first; i < min(first + permute_per_thread, args.n); ++i)
    to[i] = from[min(uint(order[i]), args.n - 1)]; // a wrong number must not read elsewhere
}
