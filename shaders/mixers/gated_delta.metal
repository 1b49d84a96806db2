// The gated delta rule, token after token: causal convolution with silu, L2 norm of queries and keys, gates, the step
// of the recurrence, and the gated RMSNorm of its output, in one launch. A threadgroup has a value head of a sequence,
// whose state stays in registers from the first token to the last.
//
// A token with q, k, v and beta changes a head's state S [keys, values], which decays by d, to
//   S' = d S + k e^T,   e = beta (v - d S^T k),   and gives   o = S'^T q = d S^T q + (k . q) e.
// So S is read once: its products with k and with q are summed over the rows together. In Kimi's delta attention each
// row of S has a decay of its own: a head has D = DK of them, not one.
#include "mixers/gated_delta.h"

#include "mixers/gated_delta_inputs.h"

using namespace metal;
using namespace foundry;

// foundry-lint: instance(gated_delta<half, float, 128, 128, 1, 4>)
// foundry-lint: instance(gated_delta<half, float, 128, 128, 128, 4>)
// foundry-lint: instance(gated_delta<float, float, 96, 192, 1, 4>)
template <typename T, typename Gate, int DK, int DV, int D, int W>
[[kernel]] void gated_delta(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const T* z [[buffer(3)]],
    device const T* b [[buffer(4)]],
    device const T* a [[buffer(5)]],
    device const T* conv_weight [[buffer(6)]], // [channels, W]: of all queries, keys, values
    device const Gate* a_log [[buffer(7)]],
    device const Gate* dt_bias [[buffer(8)]],
    device const T* norm_weight [[buffer(9)]],
    device T* conv_states [[buffer(10)]],  // [slots of all, channels, W]
    device float* states [[buffer(11)]],   // [slots of all, value heads, DK, DV]
    device const int* runs [[buffer(12)]], // of each sequence: its first token, and how many there are
    device const int* table [[buffer(13)]], // of each sequence: the slot of state n is at n % slots
    device const int* count [[buffer(14)]], // of each sequence: the number of its state; 0: zeros, which nobody stores
    device T* y [[buffer(15)]],             // [tokens, value heads, DV]
    constant GatedDeltaArgs& args [[buffer(16)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  constexpr int groups = int(gated_delta_simdgroups(DV)), threads = groups * 32;
  constexpr int rows = (DK + groups - 1) / groups, columns = (DV + 31) / 32, row_columns = (DK + 31) / 32;
  constexpr bool whole = DK == rows * groups && DV == columns * 32; // every lane has numbers of the state alone
  threadgroup float qkv[2 * DK + DV], decays[D], sums[2][groups][DV], changes[DV], squares[8];

  const uint heads = args.key_heads * args.per_key, head = group.x;
  const uint key_head = head / args.per_key, sub_head = head % args.per_key;
  const uint first = runs[group.y * args.runs_stride], tokens = runs[group.y * args.runs_stride + 1];
  const uint begin = count[group.y * args.count_stride];
  if (tokens > args.longest) return; // gated_delta_prompt.metal has them
  device const int* slots = table + group.y * args.table_stride;
  const uint key_channels = args.key_heads * DK, channels = 2 * key_channels + heads * DV;
  const ulong slot_before = begin == 0 ? 0 : slots[begin % args.slots];
  device const T* conv_before = conv_states + slot_before * channels * W;
  device const float* before = states + (slot_before * heads + head) * (DK * DV);

  const uint own = simdgroup * rows * DV + lane; // the lane's first number
  float state[rows][columns];
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) {
      const bool there = whole || (simdgroup * rows + r < DK && lane + 32 * c < DV);
      state[r][c] = begin != 0 && there ? before[own + r * DV + 32 * c] : 0.0f;
    }

  // A token's reads stand before its first barrier, so that one wait is for all.
  const float norm = tid < DV ? float(norm_weight[tid]) : 0.0f;
  for (uint t = 0; t < tokens; ++t) {
    const uint token = first + t, number = begin + 1 + (tokens < args.slots ? t : 0);
    const bool stored = tokens < args.slots || t + 1 == tokens;
    const ulong slot = stored ? ulong(slots[number % args.slots]) : 0;

    const float gate = tid < DV ? float(z[offset(args.z, token, key_head, sub_head) + tid]) : 0.0f;
    const float write = float(b[offset(args.b, token, key_head, sub_head)]);
    for (uint d = threads - 1 - tid; d < D; d += threads) { // threads that have no channel, if there are some
      const float step = float(a[offset(args.a, token, key_head, sub_head) + d]) + float(dt_bias[head * D + d]);
      decays[d] = exp(log_decay(step, float(a_log[head]), args));
    }
    for (uint i = tid; i < 2 * DK + DV; i += threads) {
      const bool is_value = i >= 2 * DK, is_key = i >= DK;
      const uint column = is_value ? i - 2 * DK : is_key ? i - DK : i;
      const uint channel = is_value ? 2 * key_channels + head * DV + column
                                    : (is_key ? key_channels : 0) + key_head * DK + column;
      T last[W];
      device const T* of_channel = conv_before + ulong(channel) * W;
      device const T* x = is_value ? v + offset(args.v, first, key_head, sub_head)
                          : is_key ? k + offset(args.k, first, key_head, 0)
                                   : q + offset(args.q, first, key_head, 0);
      const uint stride = is_value ? args.v.token : is_key ? args.k.token : args.q.token;
      last_inputs<T, W>(x + column, stride, t, of_channel, begin != 0, last);
      qkv[i] = convolve<T, W>(last, conv_weight + ulong(channel) * W);
      if (stored && (is_value || sub_head == 0)) // the heads that share queries and keys have the same inputs
        for (int w = 0; w < W; ++w)
          conv_states[(slot * channels + channel) * W + w] = last[w];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float qq = 0.0f, kk = 0.0f, qk = 0.0f;
    for (int c = 0; c < row_columns; ++c) {
      const uint row = lane + 32 * c;
      const float q_row = row < DK ? qkv[row] : 0.0f, k_row = row < DK ? qkv[DK + row] : 0.0f;
      qq = fma(q_row, q_row, qq);
      kk = fma(k_row, k_row, kk);
      qk = fma(q_row, k_row, qk);
    }
    const float q_scale = rsqrt(simd_sum(qq) + 1e-6f) * rsqrt(float(DK)), k_scale = rsqrt(simd_sum(kk) + 1e-6f);
    qk = simd_sum(qk) * q_scale * k_scale;
    const float beta = args.beta_scale * sigmoid(write);

    float keys[rows], with_k[columns], with_q[columns], decay = decays[0];
    for (int c = 0; c < columns; ++c)
      with_k[c] = with_q[c] = 0.0f;
    for (int r = 0; r < rows; ++r) {
      const uint row = simdgroup * rows + r;
      keys[r] = whole || row < DK ? qkv[DK + row] * k_scale : 0.0f;
      const float query = whole || row < DK ? qkv[row] * q_scale : 0.0f;
      if (D > 1) decay = whole || row < DK ? decays[row] : 0.0f;
      for (int c = 0; c < columns; ++c) {
        state[r][c] *= decay;
        with_k[c] = fma(state[r][c], keys[r], with_k[c]);
        with_q[c] = fma(state[r][c], query, with_q[c]);
      }
    }
    for (int c = 0; c < columns; ++c) {
      const uint column = lane + 32 * c;
      if (whole || column < DV) {
        sums[0][simdgroup][column] = with_k[c];
        sums[1][simdgroup][column] = with_q[c];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    float o = 0.0f;
    if (simdgroup < columns) { // thread `tid` has column `tid`
      if (tid < DV) {
        float remembered = 0.0f;
        for (int g = 0; g < groups; ++g) {
          remembered += sums[0][g][tid];
          o += sums[1][g][tid];
        }
        const float change = beta * (qkv[2 * DK + tid] - remembered);
        changes[tid] = change;
        o = fma(qk, change, o);
      }
      const float square = simd_sum(o * o);
      if (lane == 0) squares[simdgroup] = square;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    if (tid < DV) {
      float square = 0.0f;
      for (int c = 0; c < columns; ++c)
        square += squares[c];
      const float normed = o * rsqrt(square / float(DV) + args.eps);
      y[(token * heads + head) * DV + tid] = T(normed * norm * output_gate(gate, args));
    }
    device float* after = states + (slot * heads + head) * (DK * DV);
    for (int c = 0; c < columns; ++c) {
      const uint column = lane + 32 * c;
      const float change = whole || column < DV ? changes[column] : 0.0f;
      for (int r = 0; r < rows; ++r) {
        state[r][c] = fma(keys[r], change, state[r][c]);
        const bool there = whole || (simdgroup * rows + r < DK && column < DV);
        if (stored && there) after[own + r * DV + 32 * c] = state[r][c];
      }
    }
  }
}
