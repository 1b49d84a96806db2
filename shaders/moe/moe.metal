// A mixture of experts for few tokens: which experts a token goes to, and those experts' products, read where they lie.
// Sums are f32 and rounded once. A token's result does not depend on the tokens that come with it.
#include "moe/moe.h"

#include "moe/topk_experts.h"
#include "linear/epilogue.h"
#include "linear/normed_products.h"

using namespace metal;
using namespace foundry;

// Rows of a router, and one more behind them for a shared expert's gate.
template <typename Q> struct RouterRows {
  device const typename Q::block* weight;
  device const typename Q::block* shared;
  uint row_blocks, experts, rows, first;
  METAL_FUNC device const typename Q::block* row(uint i) const {
    const uint n = min(first + i, rows - 1);
    return n < experts ? weight + ulong(n) * row_blocks : shared;
  }
};

// The logits of a token's experts, norm(x) W^T + bias, and behind them that of a shared expert: [tokens, experts + 1].
// `weight` is the router's matrix, `shared` the row that weighs the shared expert. n[1]: whether there is one.
// foundry-lint: instance(moe_logits<F16, half, 8, 2, 4, 1>)
// foundry-lint: instance(moe_logits<F32, float, 1, 4, 1, 4>)
template <typename Q, typename T, int VEC, int OUTS, int UNROLL, int CHAINS>
[[kernel]] void moe_logits(
    device const T* x [[buffer(0)]],
    device const T* norm_weight [[buffer(1)]],
    device const typename Q::block* weight [[buffer(2)]],
    device const typename Q::block* shared [[buffer(3)]],
    device const T* bias [[buffer(4)]],
    device float* logits [[buffer(5)]],
    constant NormedArgs& args [[buffer(6)]],
    threadgroup float* partial [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]],
    ushort lane [[thread_index_in_simdgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort simdgroups [[simdgroups_per_threadgroup]]) {
  const uint rows = args.n[0] + args.n[1], token = group.y;
  const uint n0 = team_of(group.x, simdgroup, simdgroups, args.split) * OUTS, n = n0 + lane;
  const RouterRows<Q> w = {weight, shared, args.row_blocks[0], args.n[0], rows, n0};
  const float logit = normed_product<Q, T, VEC, OUTS, UNROLL, CHAINS>(w, x, norm_weight, args, token, n0 < rows, lane,
                                                                      simdgroup, simdgroups, partial);
  if (part_of(simdgroup, args.split) == 0 && lane < OUTS && n < rows)
    logits[token * rows + n] = args.has_bias && n < args.n[0] ? logit + float(bias[n]) : logit;
}

// The experts of each token and their weights, a simdgroup a token. `shared`: logits of a shared expert; `correction`:
// added for the choice alone.
// foundry-lint: instance(moe_choose<bfloat, float>)
template <typename T, typename C>
[[kernel]] void moe_choose(
    device const T* logits [[buffer(0)]],
    device const T* shared [[buffer(1)]],
    device const C* correction [[buffer(2)]],
    device int* ids [[buffer(3)]],
    device float* weights [[buffer(4)]],
    constant ChoiceArgs& args [[buffer(5)]],
    threadgroup uint* orders [[threadgroup(0)]],
    uint token [[threadgroup_position_in_grid]],
    ushort lane [[thread_index_in_simdgroup]]) {
  const bool gated = args.has_shared && args.shared_weight == 0.0f;
  choose_experts(logits + ulong(token) * args.logits_stride, correction,
                 gated ? float(shared[token * args.shared_stride]) : 0.0f, token, args, lane, orders, ids,
                 weights);
}

// The experts' number; a pair that is not one of theirs reads nothing.
METAL_FUNC bool is_expert(constant RoutedArgs& args, int id) { return uint(id) < args.experts; }

// As normed_product (normed_products.h), without a norm.
template <typename Q, typename T, int VEC, int OUTS, int UNROLL, int CHAINS, typename W>
METAL_FUNC float plain_product(thread const W& w, device const T* x, uint row, constant NormedArgs& args, bool busy,
                               ushort lane, ushort simdgroup, threadgroup float* partial) {
  Products<Q, T, 1, VEC, OUTS, UNROLL, CHAINS, W> products;
  const uint x_row[1] = {row * args.k};
  products.set(x, x_row, 1, partial, 0, 0, args.k, false);
  return products.plain(w, args.split, args.k, busy ? args.k : 0, lane, simdgroup, partial).total;
}

// Whether the j-th of a token's experts is the shared one.
METAL_FUNC bool is_shared(constant RoutedArgs& args, uint j) { return args.has_shared && j + 1 == args.chosen; }

// Rows of an expert's gate and up, PAIRS of each, or of its up alone.
template <typename Q, int PAIRS, bool Gated> struct ExpertRows {
  device const typename Q::block* gate;
  device const typename Q::block* up;
  uint gate_blocks, up_blocks, width, first;
  METAL_FUNC device const typename Q::block* row(uint i) const {
    const ulong n = min(first + i % PAIRS, width - 1);
    return Gated && i < PAIRS ? gate + n * gate_blocks : up + n * up_blocks;
  }
};

// y[pair] = act(gate) * up of the pair's expert, where gate, up = (norm x) W^T + bias, or x W^T + bias unless Normed;
// act(up) unless Gated. shared_gate, shared_up: matrices of the shared expert.
// foundry-lint: instance(moe_glu<Q8_0, half, 16, 4, 1, 1, true, true>)
// foundry-lint: instance(moe_glu<F32, float, 1, 2, 1, 4, false, true>)
// foundry-lint: instance(moe_glu<Q8_0, half, 16, 4, 1, 1, true, false>)
template <typename Q, typename T, int VEC, int OUTS, int UNROLL, int CHAINS, bool Normed, bool Gated>
[[kernel]] void moe_glu(
    device const T* x [[buffer(0)]],
    device const T* norm_weight [[buffer(1)]],
    device const int* ids [[buffer(2)]],
    device const typename Q::block* gate [[buffer(3)]],
    device const typename Q::block* up [[buffer(4)]],
    device const typename Q::block* shared_gate [[buffer(5)]],
    device const typename Q::block* shared_up [[buffer(6)]],
    device const T* gate_bias [[buffer(7)]],
    device const T* up_bias [[buffer(8)]],
    device T* y [[buffer(9)]],
    constant MoeGluArgs& args [[buffer(10)]],
    threadgroup float* partial [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]],
    ushort lane [[thread_index_in_simdgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort simdgroups [[simdgroups_per_threadgroup]]) {
  constant NormedArgs& a = args.normed;
  constant RoutedArgs& r = args.routed;
  const uint pair = group.y, token = pair / r.chosen, j = pair % r.chosen;
  const bool shared = is_shared(r, j);
  const int id = shared ? 0 : ids[token * r.ids_stride + j];
  const bool known = is_expert(r, id);
  const ulong expert = known ? ulong(id) : 0ul;

  constexpr int outputs = Gated ? OUTS / 2 : OUTS;  // of a team, which has those of gate and up, or of up alone
  const uint n0 = team_of(group.x, simdgroup, simdgroups, a.split) * outputs, width = a.n[0];
  const ExpertRows<Q, outputs, Gated> w = {shared ? shared_gate : gate + expert * r.expert_blocks[0],
                                           shared ? shared_up : up + expert * r.expert_blocks[1], a.row_blocks[0],
                                           a.row_blocks[1], width, n0};
  const bool busy = known && n0 < width;
  float value = Normed ? normed_product<Q, T, VEC, OUTS, UNROLL, CHAINS>(w, x, norm_weight, a, token, busy, lane,
                                                                         simdgroup, simdgroups, partial)
                       : plain_product<Q, T, VEC, OUTS, UNROLL, CHAINS>(w, x, token, a, busy, lane, simdgroup, partial);
  const uint n = n0 + lane % outputs;
  if (busy && n < width)
    value += Gated && lane % OUTS < outputs ? bias_of(args.bias[0], gate_bias, expert, n)
                                            : bias_of(args.bias[1], up_bias, expert, n);
  const float other = simd_shuffle_xor(value, ushort(outputs));
  const float result = Gated ? gated(args.activation, value, other) : activate(args.activation, value);
  if (part_of(simdgroup, a.split) == 0 && lane < outputs && n < width)
    y[pair * width + n] = T(known ? result : 0.0f);
}

// y[token] = residual + scale * (the sum over the token's pairs of weight * (x[pair] W^T + bias)), and then biases. A
// team's simdgroups have experts of their own, so that reads of several are in flight, and where there are more of them
// than experts, those of an expert share K. Products are added by simdgroup, those of one in the order of its pairs.
// `shared`: the shared expert's matrix.
// foundry-lint: instance(moe_down<Q4_0, bfloat, 16, 4, 1, 1>)
// foundry-lint: instance(moe_down<F32, float, 8, 4, 1, 4>)
template <typename Q, typename T, int VEC, int OUTS, int UNROLL, int CHAINS>
[[kernel]] void moe_down(
    device const T* x [[buffer(0)]],
    device const int* ids [[buffer(1)]],
    device const float* weights [[buffer(2)]],
    device const typename Q::block* weight [[buffer(3)]],
    device const typename Q::block* shared [[buffer(4)]],
    device const T* bias [[buffer(5)]],
    device const T* residual [[buffer(6)]],
    device T* y [[buffer(7)]],
    constant MoeDownArgs& args [[buffer(8)]],
    threadgroup float* partial [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]],
    ushort lane [[thread_index_in_simdgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort simdgroups [[simdgroups_per_threadgroup]]) {
  constant RoutedArgs& r = args.routed;
  const uint token = group.y;
  const uint n0 = team_of(group.x, simdgroup, simdgroups, args.split) * OUTS, part = part_of(simdgroup, args.split);
  const uint share = args.share, beside = args.split >> ctz(share);  // experts at a time
  const PlainRows<T, VEC == 1 ? 1 : 8> rows = {x};
  float total[OUTS];
  for (int n = 0; n < OUTS; ++n)
    total[n] = 0.0f;
  for (uint j = part >> ctz(share); j < r.chosen; j += beside) {
    const int id = is_shared(r, j) ? 0 : ids[token * r.ids_stride + j];
    if (is_expert(r, id)) {  // uniform
      device const typename Q::block* matrix = is_shared(r, j) ? shared : weight + ulong(id) * r.expert_blocks[0];
      device const typename Q::block* w_row[OUTS];
      for (int n = 0; n < OUTS; ++n)
        w_row[n] = matrix + ulong(min(n0 + n, args.n - 1)) * args.row_blocks;
      const uint x_row[1] = {(token * r.chosen + j) * args.k};
      float sum[OUTS], unused[1];
      accumulate_k<Q, 1, VEC, OUTS, UNROLL, CHAINS>(w_row, rows, x_row, part_of(part, share) * simd_width + lane, share,
                                                    n0 < args.n ? args.k : 0, sum, unused);
      const float w = weights[token * r.weights_stride + j];
      for (int n = 0; n < OUTS; ++n)
        total[n] = fma(w, sum[n], total[n]);
    }
  }
  float sum = team_sums(total, args.split, part, partial, simdgroup, lane);
  const uint n = n0 + lane;
  if (part == 0 && lane < OUTS && n < args.n) {
    for (uint j = 0; args.bias.given && j < r.chosen; ++j) {
      const int id = ids[token * r.ids_stride + j];
      if (is_expert(r, id))
        sum = fma(weights[token * r.weights_stride + j], bias_of(args.bias, bias, ulong(id), n), sum);
    }
    const uint at = token * args.n + n;
    y[at] = T(args.has_residual ? fma(args.scale, sum, float(residual[at])) : args.scale * sum);
  }
}
