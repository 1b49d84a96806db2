// A mixture of experts for many tokens: pairs of a token and an expert are sorted by expert and go through tiles, so
// that an expert's weights are read once for the pairs of a tile.
#include "moe/moe.h"

#include "linear/epilogue.h"
#include "linear/tiles.h"

using namespace metal;
using namespace foundry;

// Sorts the pairs by expert, in one threadgroup with a thread for each expert, and cuts every expert's into tiles.
// Pairs of no expert are left out. `chunk_of_ids`: one int a thread.
[[kernel]] void moe_group(
    device const int* ids [[buffer(0)]],
    device int* order [[buffer(1)]],
    device uint* tiles [[buffer(2)]],
    constant MoeGroupArgs& args [[buffer(3)]],
    threadgroup int* chunk_of_ids [[threadgroup(0)]],
    threadgroup uint* counts [[threadgroup(1)]],
    ushort expert [[thread_index_in_threadgroup]],
    ushort threads [[threads_per_threadgroup]]) {
  constant RoutedArgs& r = args.routed;
  uint count = 0, place = 0;
  for (int pass = 0; pass < 2; ++pass) {  // to count the pairs of each expert, and to write them down
    for (uint first = 0; first < args.pairs; first += threads) {
      const uint pair = first + expert;
      if (pair < args.pairs)
        chunk_of_ids[expert] = ids[pair / r.chosen * r.ids_stride + pair % r.chosen];
      threadgroup_barrier(mem_flags::mem_threadgroup);
      const uint n = min(uint(threads), args.pairs - first);
      for (uint i = 0; i < n; ++i) {
        const bool own = chunk_of_ids[i] == int(expert) && expert < r.experts;
        if (own && pass == 1)
          order[place + count] = first + i;
        count += own;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (pass == 0) {
      counts[expert] = count;
      threadgroup_barrier(mem_flags::mem_threadgroup);
      uint tile = 0;
      for (uint e = 0; e < expert; ++e) {
        place += counts[e];
        tile += (counts[e] + linear_bm - 1) / linear_bm;
      }
      for (uint start = 0; start < count; start += linear_bm, ++tile) {
        tiles[tile * moe_tile_fields] = expert;
        tiles[tile * moe_tile_fields + 1] = place + start;
        tiles[tile * moe_tile_fields + 2] = min(linear_bm, count - start);
      }
      for (; expert == threads - 1 && tile < args.tiles; ++tile)  // the rest is empty
        for (uint i = 0; i < moe_tile_fields; ++i)
          tiles[tile * moe_tile_fields + i] = 0;
      count = 0;
    }
  }
}

// y[pair] = act(x[pair / per_row] W^T + bias) with those of the pair's expert; group.y is a tile of pairs.
// foundry-lint: instance(moe_linear<Q8_0, half, 8>)
// foundry-lint: instance(moe_linear<F32, float, 1>)
template <typename Q, typename T, int VEC>
[[kernel]] void moe_linear(
    device const T* x [[buffer(0)]],
    device const int* order [[buffer(1)]],
    device const uint* tiles [[buffer(2)]],
    device const typename Q::block* weight [[buffer(3)]],
    device const T* bias [[buffer(4)]],
    device T* y [[buffer(5)]],
    constant MoeLinearArgs& args [[buffer(6)]],
    uint2 group [[threadgroup_position_in_grid]],
    ushort tid [[thread_index_in_threadgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  using W = Tile<Q, T, VEC>;
  constexpr int BM = linear_bm, BN = linear_bn;
  threadgroup float memory[W::floats];
  const uint expert = tiles[group.y * moe_tile_fields], first = tiles[group.y * moe_tile_fields + 1];
  const uint count = tiles[group.y * moe_tile_fields + 2];  // 0: nothing to read or to write
  const uint n0 = group.x * BN, r = W::row(tid);
  device const typename Q::block* matrix = weight + ulong(expert) * args.routed.expert_blocks[0];
  device const typename Q::block* w_row[W::w_rows];
  for (int i = 0; i < W::w_rows; ++i)
    w_row[i] = matrix + ulong(min(n0 + r + i * W::w_step, args.n - 1)) * args.row_blocks;
  const uint pair = count ? uint(order[first + min(r, count - 1)]) : 0;
  W::multiply(x + ulong(pair / args.per_row) * args.k, w_row, count ? args.k : 0, memory, tid, simdgroup);
  for (int i = tid; i < BM * BN; i += linear_tile_threads) {
    const uint m = i / BN, n = n0 + i % BN;
    if (m < count && n < args.n) {
      const float of_expert =
          args.bias.given ? float(bias[ulong(expert) * args.bias.of_expert + n * args.bias.of_output]) : 0.0f;
      y[ulong(order[first + m]) * args.n + n] = T(activate(args.activation, memory[i] + of_expert));
    }
  }
}

// y[token] = residual + scale * (the sum over the token's pairs of weight * x[pair]), pairs in their order.
// foundry-lint: instance(moe_combine<half>)
template <typename T>
[[kernel]] void moe_combine(
    device const T* x [[buffer(0)]],
    device const int* ids [[buffer(1)]],
    device const float* weights [[buffer(2)]],
    device const T* residual [[buffer(3)]],
    device T* y [[buffer(4)]],
    constant MoeCombineArgs& args [[buffer(5)]],
    uint i [[thread_position_in_grid]]) {
  constant RoutedArgs& r = args.routed;
  const uint token = i / args.n, n = i % args.n;
  float sum = 0.0f;
  for (uint j = 0; j < r.chosen; ++j) {
    if (uint(ids[token * r.ids_stride + j]) < r.experts)
      sum = fma(weights[token * r.weights_stride + j], float(x[(token * r.chosen + j) * args.n + n]), sum);
  }
  y[i] = T(args.has_residual ? fma(args.scale, sum, float(residual[i])) : args.scale * sum);
}
