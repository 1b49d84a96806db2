// Mamba2's state space, token after token (for many, see mamba2_prompt.metal): causal convolution with silu, step
// sizes, the step of the recurrence. A threadgroup has a head of a sequence, whose state stays in registers from the
// first token to the last.
//
// A token with x, B, C and step size dt changes a head's state S [values, keys], which decays by d = exp(dt A), to
//   S' = d S + dt x B^T,   and gives   y = S' C + D x.
// Heads of a group share B and C. The gated RMSNorm behind it is over all heads of a group: a launch of its own.
#include "mixers/mamba2.h"

#include "common/reduce.h"
#include "mixers/gated_delta_inputs.h"
#include "mixers/mamba2_inputs.h"

using namespace metal;
using namespace foundry;

constant bool has_norm [[function_constant(FC_MAMBA2_NORM)]];
constant bool norm_first [[function_constant(FC_MAMBA2_NORM_FIRST)]];

// foundry-lint: instance(mamba2<half, 64, 128, 4>)
// foundry-lint: instance(mamba2<float, 128, 256, 4>)
template <typename T, int P, int N, int W>
[[kernel]] void mamba2(
    device const T* x [[buffer(0)]],           // [tokens, channels]: x of all heads, B of all groups, C
    device const T* dt [[buffer(1)]],          // [tokens, heads]
    device const T* conv_weight [[buffer(2)]], // [channels, W]
    device const T* conv_bias [[buffer(3), function_constant(has_conv_bias)]],
    device const T* a_log [[buffer(4)]],
    device const T* dt_bias [[buffer(5)]],
    device const T* d [[buffer(6)]],
    device T* conv_states [[buffer(7)]],    // [slots of all, channels, W]
    device float* states [[buffer(8)]],     // [slots of all, heads, P, N]
    device const int* runs [[buffer(9)]],   // of each sequence: its first token, and how many there are
    device const int* table [[buffer(10)]], // of each sequence: the slot of state n is at n % slots
    device const int* count [[buffer(11)]], // of each sequence: the number of its state; 0: zeros, which nobody stores
    device const T* keep [[buffer(12), function_constant(has_keep)]], // [tokens]: 0 for padding, else 1
    device const int* prompt [[buffer(13), function_constant(has_prompt)]], // of each sequence: tokens of its prompt
    device float* y [[buffer(14)]],                                         // [tokens, heads, P]
    constant Mamba2Args& args [[buffer(15)]],
    uint2 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  constexpr int groups = int(mamba2_simdgroups(P * N)), threads = groups * 32;
  constexpr int rows = (P + groups - 1) / groups, columns = (N + 31) / 32;
  constexpr bool whole = P == rows * groups && N == columns * 32; // every lane has numbers of the state alone
  threadgroup float inputs[2][P + 2 * N]; // of even and of odd tokens: one barrier a token

  const uint head = group.x, shared = head / args.per_group, first = runs[group.y * args.runs_stride];
  const uint tokens = runs[group.y * args.runs_stride + 1], begin = count[group.y * args.count_stride];
  if (tokens > args.longest) return;
  device const int* slots = table + group.y * args.table_stride;
  const uint values = args.heads * P, keys = args.heads / args.per_group * N, channels = values + 2 * keys;
  const ulong slot_before = begin == 0 ? 0 : slots[begin % args.slots];
  device const T* conv_before = conv_states + slot_before * channels * W;
  device const float* before = states + (slot_before * args.heads + head) * (P * N);

  const uint own = simdgroup * rows * N + lane; // the lane's first number
  float state[rows][columns];
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) {
      const bool there = whole || (simdgroup * rows + r < P && lane + 32 * c < N);
      state[r][c] = begin != 0 && there ? before[own + r * N + 32 * c] : 0.0f;
    }
  const float rate = -exp(float(a_log[head])), bias = float(dt_bias[head]), skip = float(d[head]);
  const uint bounded = has_prompt ? prompt[group.y * args.prompt_stride] : 0;

  for (uint t = 0; t < tokens; ++t) {
    const uint token = first + t, number = begin + 1 + (tokens < args.slots ? t : 0);
    const bool stored = tokens < args.slots || t + 1 == tokens;
    const ulong slot = stored ? ulong(slots[number % args.slots]) : 0;
    threadgroup float* input = inputs[t % 2];
    const float raw = float(dt[token * args.dt_stride + head]);

    for (uint i = tid; i < P + 2 * N; i += threads) {
      const bool is_x = i < P;
      const uint channel = is_x ? head * P + i : values + (i < P + N ? 0 : keys - N) + shared * N + i - P;
      T last[W];
      last_inputs<T, W>(x + first * args.x_stride + channel, args.x_stride, t, conv_before + ulong(channel) * W,
                        begin != 0, last, factor_of(channel, values, keys, args));
      const float added = has_conv_bias ? float(conv_bias[channel]) : 0.0f;
      const float mixed = convolve<T, W>(last, conv_weight + ulong(channel) * W, added);
      input[i] = has_keep ? mixed * float(keep[token]) : mixed;
      if (stored && (is_x || head % args.per_group == 0)) // heads of a group have the same B and C
        for (int w = 0; w < W; ++w)
          conv_states[(slot * channels + channel) * W + w] = last[w];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    const float step = step_size(raw, bias, t < bounded, args), decay = exp(rate * step);
    float b[columns], query[columns];
    for (int c = 0; c < columns; ++c) {
      const uint column = lane + 32 * c;
      b[c] = whole || column < N ? input[P + column] : 0.0f;
      query[c] = whole || column < N ? input[P + N + column] : 0.0f;
    }
    device float* after = states + (slot * args.heads + head) * (P * N);
    for (int r = 0; r < rows; ++r) {
      const uint row = simdgroup * rows + r;
      const float value = whole || row < P ? input[row] : 0.0f;
      float sum = 0.0f;
      for (int c = 0; c < columns; ++c) {
        state[r][c] = fma(step * value, b[c], state[r][c] * decay);
        sum = fma(state[r][c], query[c], sum);
        if (stored && (whole || (row < P && lane + 32 * c < N))) after[own + r * N + 32 * c] = state[r][c];
      }
      sum = simd_sum(sum);
      if (lane == 0 && (whole || row < P)) y[(token * args.heads + head) * P + row] = fma(skip, value, sum);
    }
  }
}

// RMSNorm of y silu(z), over all heads of a group together, or of y before the gate, or none; a threadgroup has a group
// of a token.
// foundry-lint: instance(mamba2_norm<half>)
template <typename T>
[[kernel]] void mamba2_norm(
    device const float* y [[buffer(0)]],
    device const T* z [[buffer(1)]],
    device const T* weight [[buffer(2), function_constant(has_norm)]], // of all groups
    device T* out [[buffer(3)]],
    constant Mamba2Args& args [[buffer(4)]],
    uint row [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float squares[mamba2_norm_threads / 32];
  const uint groups = args.heads / args.per_group, size = args.group_size;
  const uint token = row / groups, begin = row % groups * size;
  device const float* from = y + ulong(row) * size;
  device const T* gate = z + token * args.z_stride + begin;
  const float factor = args.factors[0];
  float inverse = 1.0f;
  if (has_norm) {
    float square = 0.0f;
    for (uint i = tid; i < size; i += mamba2_norm_threads) {
      const float normed = norm_first ? from[i] : from[i] * Silu::apply(float(gate[i]) * factor);
      square = fma(normed, normed, square);
    }
    inverse = rsqrt(threadgroup_sum(square, squares, lane, simdgroup, simdgroups) / float(size) + args.eps);
  }
  for (uint i = tid; i < size; i += mamba2_norm_threads) {
    const float scale = has_norm ? inverse * float(weight[begin + i]) : 1.0f;
    out[ulong(row) * size + i] = T(from[i] * Silu::apply(float(gate[i]) * factor) * scale);
  }
}
