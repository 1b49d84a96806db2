// A decoder layer's first and fourth step for few tokens: RMSNorm and the projections after it, with what follows them, in
// one launch. The norm, if there is one, is a weighting of x on the way to the products (gemv.h); a team of simdgroups makes OUTS
// neighbouring outputs for ROWS rows of x, and in the end lane m * OUTS + n of its first simdgroup has output n of row m.
// Kernels of pairs have OUTS / 2 of them: outputs n and n + OUTS / 2 belong together.
#include "linear/norm_linear.h"

#include "linear/epilogue.h"
#include "attention/heads.h"
#include "linear/normed_products.h"

using namespace metal;
using namespace foundry;

constant bool has_norm [[function_constant(FC_NORM_LINEAR_NORM)]];

// Row n of matrices side by side, without a branch. (An array of them would lie in a thread's own memory on CUDA.)
template <typename Block>
METAL_FUNC device const Block* row_of(constant NormedArgs& args, uint n, device const Block* w0, device const Block* w1,
                                      device const Block* w2, device const Block* w3) {
  const uint second = args.n[0], third = second + args.n[1], fourth = third + args.n[2];
  device const Block* w = n < second ? w0 : n < third ? w1 : n < fourth ? w2 : w3;
  const uint first = n < second ? 0 : n < third ? second : n < fourth ? third : fourth;
  const uint blocks = n < second   ? args.row_blocks[0]
                      : n < third  ? args.row_blocks[1]
                      : n < fourth ? args.row_blocks[2]
                                   : args.row_blocks[3];
  return w + ulong(n - first) * blocks;
}

template <typename T>
METAL_FUNC float bias_of(constant NormedArgs& args, uint n, device const T* b0, device const T* b1, device const T* b2,
                         device const T* b3) {
  if (n < args.n[0])
    return args.has_bias & 1 ? float(b0[n]) : 0.0f;
  n -= args.n[0];
  if (n < args.n[1])
    return args.has_bias & 2 ? float(b1[n]) : 0.0f;
  n -= args.n[1];
  if (n < args.n[2])
    return args.has_bias & 4 ? float(b2[n]) : 0.0f;
  return args.has_bias & 8 ? float(b3[n - args.n[2]]) : 0.0f;
}

// Neighbouring rows of them, as W of Products (products.h).
template <typename Q> struct SideBySide {
  constant NormedArgs* args;
  device const typename Q::block* w0;
  device const typename Q::block* w1;
  device const typename Q::block* w2;
  device const typename Q::block* w3;
  uint first, end;
  METAL_FUNC device const typename Q::block* row(uint i) const {
    return row_of(*args, min(first + i, end - 1), w0, w1, w2, w3);
  }
};

// y = (norm x) W^T + bias, for W side by side.
// foundry-lint: instance(norm_linear<Q8_0, half, 4, 16, 4, 1, 1>)
// foundry-lint: instance(norm_linear<F32, float, 1, 1, 2, 2, 4>)
// foundry-lint: instance(norm_linear<Q4_K, half, 8, 16, 16, 2, 0>)
template <typename Q, typename T, int ROWS, int VEC, int OUTS, int UNROLL, int CHAINS>
[[kernel]] void norm_linear(
    device const T* x [[buffer(0)]],
    device const T* norm_weight [[buffer(1), function_constant(has_norm)]],
    device const typename Q::block* w0 [[buffer(2)]],
    device const typename Q::block* w1 [[buffer(3)]],
    device const typename Q::block* w2 [[buffer(4)]],
    device const typename Q::block* w3 [[buffer(5)]],
    device const T* b0 [[buffer(6)]],
    device const T* b1 [[buffer(7)]],
    device const T* b2 [[buffer(8)]],
    device const T* b3 [[buffer(9)]],
    device T* y [[buffer(10)]],
    constant NormLinearArgs& args [[buffer(11)]],
    threadgroup float* partial [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]],
    ushort lane [[thread_index_in_simdgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort simdgroups [[simdgroups_per_threadgroup]]) {
  constant NormedArgs& a = args.normed;
  using W = SideBySide<Q>;
  using P = Products<Q, T, ROWS, VEC, OUTS, UNROLL, CHAINS, W>;
  P products;
  set_rows<P, T, ROWS>(products, x, a, group.y, simdgroup, simdgroups, partial, has_norm);
  const uint in_group = team_in<CHAINS>(simdgroups, a.split) * OUTS, turn = groups.x * in_group;
  const uint own = team_in<CHAINS>(simdgroup, a.split) * OUTS;
  uint first = args.first + group.x * in_group;
  const W w = {&a, w0, w1, w2, w3, first + own, args.end};
  products.begin(w, turn, a.split, a.k, lane, simdgroup);
  if (has_norm)
    products.norm(norm_weight, a.offset, a.eps, a.k, lane, simdgroup, simdgroups);
  do {
    const uint n0 = first + own;
    const auto sums = products.normed(w, norm_weight, a.offset, a.eps, has_norm, a.split, a.k, n0 < args.end ? a.k : 0,
                                      lane, simdgroup, simdgroups, partial);
    for (uint i = sums.first; i < sums.count; i += sums.step) {
      const uint m = group.y * ROWS + i / OUTS, n = n0 + i % OUTS;
      if (sums.has(i) && m < a.rows && n < args.end)
        y[m * args.outputs + n] = T(sums[i] + bias_of(a, n, b0, b1, b2, b3));
    }
    first += turn;
  } while (P::again && first < args.end);
}

// Rows n of gate and of up, `pairs` of each.
template <typename Q, int PAIRS> struct GateAndUp {
  device const typename Q::block* gate;
  device const typename Q::block* up;
  uint gate_blocks, up_blocks, first, end;
  METAL_FUNC device const typename Q::block* row(uint i) const {
    const ulong n = min(first + i % PAIRS, end - 1);
    return i < PAIRS ? gate + n * gate_blocks : up + n * up_blocks;
  }
};

// y = act(gate) * up, or what else `activation` makes of both, with gate, up = (norm x) W^T + bias: w0 and w1. A pair is an output of each.
// foundry-lint: instance(norm_glu<Q4_0, bfloat, 1, 8, 2, 2, 4>)
// foundry-lint: instance(norm_glu<Q4_0, bfloat, 8, 16, 32, 3, 0>)
template <typename Q, typename T, int ROWS, int VEC, int OUTS, int UNROLL, int CHAINS>
[[kernel]] void norm_glu(
    device const T* x [[buffer(0)]],
    device const T* norm_weight [[buffer(1), function_constant(has_norm)]],
    device const typename Q::block* w0 [[buffer(2)]],
    device const typename Q::block* w1 [[buffer(3)]],
    device const T* b0 [[buffer(4)]],
    device const T* b1 [[buffer(5)]],
    device T* y [[buffer(6)]],
    constant NormGluArgs& args [[buffer(7)]],
    threadgroup float* partial [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]],
    ushort lane [[thread_index_in_simdgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort simdgroups [[simdgroups_per_threadgroup]]) {
  constant NormedArgs& a = args.normed;
  constexpr int pairs = OUTS / 2;
  using W = GateAndUp<Q, pairs>;
  using P = Products<Q, T, ROWS, VEC, OUTS, UNROLL, CHAINS, W>;
  const uint width = a.n[0], in_group = team_in<CHAINS>(simdgroups, a.split) * pairs, turn = groups.x * in_group;
  const uint own = team_in<CHAINS>(simdgroup, a.split) * pairs;
  uint first = group.x * in_group;
  P products;
  set_rows<P, T, ROWS>(products, x, a, group.y, simdgroup, simdgroups, partial, has_norm);
  const W w = {w0, w1, a.row_blocks[0], a.row_blocks[1], first + own, width};
  products.begin(w, turn, a.split, a.k, lane, simdgroup);
  if (has_norm)
    products.norm(norm_weight, a.offset, a.eps, a.k, lane, simdgroup, simdgroups);
  do {
    const uint n0 = first + own;
    const auto sums = products.normed(w, norm_weight, a.offset, a.eps, has_norm, a.split, a.k, n0 < width ? a.k : 0, lane,
                                      simdgroup, simdgroups, partial);
    for (uint i = sums.first; i < sums.count; i += sums.step) {
      const uint m = group.y * ROWS + i / OUTS, n = n0 + i % pairs, mine = i % OUTS;
      float value = sums[i];
      if (n < width)
        value += bias_of(a, n + (mine < pairs ? 0 : width), b0, b1, b1, b1);
      const float up = simd_shuffle_xor(value, ushort(pairs));
      if (sums.has(i) && mine < pairs && m < a.rows && n < width)
        y[m * width + n] = T(gated(args.activation, value * args.gate_scale, up));
    }
    first += turn;
  } while (P::again && first < width);
}

// Rows of q, k and v that rotate together, `pairs` of them.
template <typename Q, int PAIRS> struct HeadPairs {
  constant NormedArgs* args;
  constant RopeKvArgs* heads;
  device const typename Q::block* w0;
  device const typename Q::block* w1;
  device const typename Q::block* w2;
  uint first, end;
  METAL_FUNC device const typename Q::block* row(uint i) const {
    const uint in_head = heads->head_dim / 2, at = min(first + i % PAIRS, end - 1), head = at / in_head;
    const Pair pair = pair_of(*heads, head, at % in_head);
    return row_of(*args, head * heads->head_dim + (i < PAIRS ? pair.first : pair.second), w0, w1, w2, w2);
  }
};

// q, k, v = (norm x) W^T + bias; q and k rotate, q goes to q_out, k and v to the caches. A pair is one of a head's.
// foundry-lint: instance(norm_qkv<F16, half, float, 1, 8, 4, 2, 1>)
// foundry-lint: instance(norm_qkv<Q8_0, bfloat, bfloat, 8, 8, 2, 1, 1>)
// foundry-lint: instance(norm_qkv<F16, half, float, 8, 8, 16, 2, 0>)
template <typename Q, typename T, typename Table, int ROWS, int VEC, int OUTS, int UNROLL, int CHAINS>
[[kernel]] void norm_qkv(
    device const T* x [[buffer(0)]],
    device const T* norm_weight [[buffer(1), function_constant(has_norm)]],
    device const typename Q::block* w0 [[buffer(2)]],
    device const typename Q::block* w1 [[buffer(3)]],
    device const typename Q::block* w2 [[buffer(4)]],
    device const T* b0 [[buffer(5)]],
    device const T* b1 [[buffer(6)]],
    device const T* b2 [[buffer(7)]],
    device const Table* cosines [[buffer(8)]],
    device const Table* sines [[buffer(9)]],
    device const int* positions [[buffer(10)]],
    device const int* step [[buffer(11)]],
    device T* k_cache [[buffer(12)]],
    device T* v_cache [[buffer(13)]],
    device T* q_out [[buffer(14)]],
    constant NormQkvArgs& args [[buffer(15)]],
    threadgroup float* partial [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint2 groups [[threadgroups_per_grid]],
    ushort lane [[thread_index_in_simdgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort simdgroups [[simdgroups_per_threadgroup]]) {
  constant NormedArgs& a = args.normed;
  constant RopeKvArgs& h = args.heads;
  constexpr int pairs = OUTS / 2;
  using W = HeadPairs<Q, pairs>;
  using P = Products<Q, T, ROWS, VEC, OUTS, UNROLL, CHAINS, W>;
  const uint in_head = h.head_dim / 2, in_group = team_in<CHAINS>(simdgroups, a.split) * pairs, turn = groups.x * in_group;
  const uint own = team_in<CHAINS>(simdgroup, a.split) * pairs;
  P products;
  set_rows<P, T, ROWS>(products, x, a, group.y, simdgroup, simdgroups, partial, has_norm);
  uint first = args.first_pair + group.x * in_group;
  const W w = {&a, &h, w0, w1, w2, first + own, args.end_pair};
  products.begin(w, turn, a.split, a.k, lane, simdgroup);
  if (has_norm)
    products.norm(norm_weight, a.offset, a.eps, a.k, lane, simdgroup, simdgroups);
  do {
    const uint p0 = first + own;
    const auto sums = products.normed(w, norm_weight, a.offset, a.eps, has_norm, a.split, a.k,
                                      p0 < args.end_pair ? a.k : 0, lane, simdgroup, simdgroups, partial);
    for (uint i = sums.first; i < sums.count; i += sums.step) {
      const uint m = group.y * ROWS + i / OUTS, p = p0 + i % pairs;
      const bool is_first = i % OUTS < pairs, stored = sums.has(i) && m < a.rows && p < args.end_pair;
      const uint head = p / in_head;
      const Pair pair = pair_of(h, head, p % in_head);
      const uint element = is_first ? pair.first : pair.second;
      float value = sums[i];
      if (stored)
        value += bias_of(a, head * h.head_dim + element, b0, b1, b2, b2);
      const float other = simd_shuffle_xor(value, ushort(pairs));
      if (stored) {
        const uint batch = m / h.q_len, token = m % h.q_len;
        if (pair.rotates) {
          const Angles angles = angles_of(h, positions, batch, token, head);
          const uint column = pair.column + (is_first ? 0 : h.rotary_dim / 2);
          const float c = float(cosines[angles.cosines + column]), s = float(sines[angles.sines + column]);
          value = value * c + (is_first ? -other : other) * s;
        }
        head_out(h, step, batch, token, head, q_out, k_cache, v_cache)[element] = T(value);
      }
    }
    first += turn;
  } while (P::again && first < args.end_pair);
}
