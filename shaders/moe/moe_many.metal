// A mixture of experts for many tokens: pairs of a token and an expert are sorted by expert and go through tiles, so
// that an expert's weights are read once for the pairs of a tile.
#include "moe/moe.h"

#include "linear/epilogue.h"
#include "linear/tiles.h"

using namespace metal;
using namespace foundry;

// Sorts the pairs by expert, in one threadgroup, and cuts every expert's into tiles. Pairs of no expert are left out. A
// simdgroup has pairs side by side, and a row of `counts` [simdgroups, experts], which become where its pairs go; `all`:
// of each expert.
[[kernel]] void moe_group(
    device const int* ids [[buffer(0)]],
    device int* order [[buffer(1)]],
    device uint* tiles [[buffer(2)]],
    constant MoeGroupArgs& args [[buffer(3)]],
    threadgroup uint* counts [[threadgroup(0)]],
    threadgroup uint* all [[threadgroup(1)]],
    ushort tid [[thread_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort simdgroups [[simdgroups_per_threadgroup]]) {
  constant RoutedArgs& r = args.routed;
  const uint threads = simdgroups * simd_width, each = (args.pairs + threads - 1) / threads * simd_width;
  const uint begin = simdgroup * each, end = min(begin + each, args.pairs);
  threadgroup uint* own = counts + simdgroup * r.experts;
  for (uint e = lane; e < r.experts; e += simd_width)
    own[e] = 0;
  for (uint i = tid; i < args.tiles * moe_tile_fields; i += threads)
    tiles[i] = 0;  // those that are not written below
  for (int pass = 0; pass < 2; ++pass) {  // to count the pairs, and to write them down
    for (uint first = begin; first < end; first += simd_width) {
      simdgroup_barrier(mem_flags::mem_threadgroup);
      const uint pair = first + lane;
      const uint expert = pair < end ? uint(ids[pair / r.chosen * r.ids_stride + pair % r.chosen]) : r.experts;
      uint same = 0;  // lanes that have pairs of this expert
      for (ushort i = 0; i < simd_width; ++i)
        same |= uint(simd_broadcast(expert, i) == expert) << i;
      const uint place = expert < r.experts ? own[expert] + popcount(same & ((1u << lane) - 1)) : 0;
      simdgroup_barrier(mem_flags::mem_threadgroup);
      if (expert < r.experts && pass == 1)
        order[place] = int(pair);
      if (expert < r.experts && same >> lane == 1)
        own[expert] = place + 1;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device);
    if (pass == 1)
      continue;
    for (uint e = tid; e < r.experts; e += threads) {
      uint before = 0;
      for (uint s = 0; s < simdgroups; ++s) {
        const uint count = counts[s * r.experts + e];
        counts[s * r.experts + e] = before;
        before += count;
      }
      all[e] = before;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = tid; e < r.experts; e += threads) {
      uint place = 0, tile = 0;
      for (uint i = 0; i < e; ++i) {
        place += all[i];
        tile += (all[i] + linear_bm - 1) / linear_bm;
      }
      for (uint s = 0; s < simdgroups; ++s)
        counts[s * r.experts + e] += place;
      for (uint start = 0; start < all[e]; start += linear_bm, ++tile) {
        tiles[tile * moe_tile_fields] = e;
        tiles[tile * moe_tile_fields + 1] = place + start;
        tiles[tile * moe_tile_fields + 2] = min(linear_bm, all[e] - start);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
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
      const float of_expert = bias_of(args.bias, bias, expert, n);
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
