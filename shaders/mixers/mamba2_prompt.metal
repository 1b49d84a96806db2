// Mamba2's state space over many tokens, a chunk at a time, by matrix products. Two launches: what goes into the
// recurrence (convolution, step sizes, decays) goes to rows of floats, from which the recurrence makes outputs. The gated
// norm behind it is that of single tokens (mamba2.metal).
//
// In a chunk that begins with state S [values, keys], with d[i] the product of the decays up to token i and s[i] its
// step size, token i gives
//   y_i = d[i] S C_i + sum over j <= i of d[i] / d[j] s[j] (C_i . B_j) x_j + D x_i,
// and the state behind the chunk is d[last] S + sum over j of d[last] / d[j] s[j] x_j B_j^T.
#include "mixers/mamba2.h"

#include "common/matrix_pairs.h"
#include "mixers/chunks.h"
#include "mixers/gated_delta_inputs.h"
#include "mixers/mamba2_inputs.h"

using namespace metal;
using namespace foundry;

// A row is all channels behind the convolution, then log decays, then step sizes, of all heads. A thread has a column
// of a chunk, so that it reads each input once.
// foundry-lint: instance(mamba2_inputs<half, 4>)
template <typename T, int W>
[[kernel]] void mamba2_inputs(
    device const T* x [[buffer(0)]],
    device const T* dt [[buffer(1)]],
    device const T* conv_weight [[buffer(2)]],
    device const T* conv_bias [[buffer(3), function_constant(has_conv_bias)]],
    device const T* a_log [[buffer(4)]],
    device const T* dt_bias [[buffer(5)]],
    device T* conv_states [[buffer(6)]],
    device const int* runs [[buffer(7)]],
    device const int* table [[buffer(8)]],
    device const int* count [[buffer(9)]],
    device const T* keep [[buffer(10), function_constant(has_keep)]],
    device const int* prompt [[buffer(11), function_constant(has_prompt)]],
    device float* rows [[buffer(12)]],
    constant Mamba2Args& args [[buffer(13)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  const uint first = runs[group.y * args.runs_stride], tokens = runs[group.y * args.runs_stride + 1];
  if (tokens <= args.longest) return;
  const uint channels = args.channels, heads = args.heads, width = channels + 2 * heads;
  const uint column = group.x * mamba2_input_threads + tid;
  if (column >= channels + heads) return;
  const uint row = first_row(runs, args.runs_stride, group.y), padded = rows_of(tokens);

  if (column >= channels) {
    const uint head = column - channels, bounded = has_prompt ? prompt[group.y * args.prompt_stride] : 0;
    const float rate = -exp(float(a_log[head])), bias = float(dt_bias[head]);
    for (uint from = group.z * chunk; from < padded; from += groups.z * chunk)
      for (uint t = from; t < from + chunk; ++t) {
        device float* to = rows + ulong(row + t) * width + column;
        const uint token = first + min(t, tokens - 1);
        const float step = step_size(float(dt[token * args.dt_stride + head]), bias, t < bounded, args);
        to[0] = t < tokens ? rate * step : 0.0f;
        to[heads] = t < tokens ? step : 0.0f;
      }
    return;
  }

  const uint begin = count[group.y * args.count_stride];
  device const int* slots = table + group.y * args.table_stride;
  device const T* before = conv_states + (ulong(begin == 0 ? 0 : slots[begin % args.slots]) * channels + column) * W;
  device T* after = conv_states + (ulong(slots[(begin + 1) % args.slots]) * channels + column) * W;
  device const T* own = x + first * args.x_stride + column;
  const float added = has_conv_bias ? float(conv_bias[column]) : 0.0f;
  const uint values = args.group_size * (heads / args.per_group);
  const float factor = factor_of(column, values, (channels - values) / 2, args);
  for (uint from = group.z * chunk; from < padded; from += groups.z * chunk) {
    T last[W];
    last_inputs<T, W>(own, args.x_stride, int(from) - 1, before, begin != 0, last, factor);
    for (uint t = from; t < from + chunk; ++t) {
      device float* to = rows + ulong(row + t) * width + column;
      for (int w = 1; w < W; ++w)
        last[w - 1] = last[w];
      last[W - 1] = t < tokens ? T(float(own[t * args.x_stride]) * factor) : T(0.0f);
      const float mixed = convolve<T, W>(last, conv_weight + ulong(column) * W, added);
      to[0] = t >= tokens ? 0.0f : has_keep ? mixed * float(keep[first + t]) : mixed;
      if (t + 1 == tokens)
        for (int w = 0; w < W; ++w)
          after[w] = last[w];
    }
  }
}

// A simdgroup has 8 of a head's values, and their part of the state, transposed, in registers.
// foundry-lint: instance(mamba2_chunks<half, 64, 128>)
template <typename T, int P, int N>
[[kernel]] void mamba2_chunks(
    device const float* rows [[buffer(0)]],
    device const T* d [[buffer(1)]],
    device float* states [[buffer(2)]],
    device const int* runs [[buffer(3)]],
    device const int* table [[buffer(4)]],
    device const int* count [[buffer(5)]],
    device float* y [[buffer(6)]], // [tokens, heads, P]
    constant Mamba2Args& args [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
  threadgroup float scores[chunk][chunk], logs[chunk], steps[chunk], until[chunk], behind[chunk];
  const uint first = runs[group.y * args.runs_stride], tokens = runs[group.y * args.runs_stride + 1];
  if (tokens <= args.longest) return;
  const uint head = group.x, heads = args.heads, values = heads * P, channels = args.channels;
  const uint width = channels + 2 * heads, keys = (channels - values) / 2;
  const uint begin = count[group.y * args.count_stride];
  device const int* slots = table + group.y * args.table_stride;
  const uint column = (group.z * simdgroups + simdgroup) * 8;
  const bool idle = column >= P; // it helps with the scores alone
  const float skip = float(d[head]);
  const Fragment own = fragment_of(lane);

  Matrix state[N / 8];
  device const float* before = states + (ulong(begin == 0 ? 0 : slots[begin % args.slots]) * heads + head) * (P * N);
  for (int r = 0; r < N / 8; ++r) {
    state[r] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    if (begin != 0 && !idle) simdgroup_load(state[r], before + column * N + r * 8, N, ulong2(0, 0), true);
  }

  device const float* row = rows + ulong(first_row(runs, args.runs_stride, group.y)) * width;
  for (uint start = 0; start < tokens; start += chunk, row += ulong(chunk) * width) {
    device const float* x = row + head * P + column;
    device const float* b = row + values + head / args.per_group * N;
    device const float* c = b + keys;
    threadgroup_barrier(mem_flags::mem_threadgroup); // the chunk before is done with

    if (simdgroup == 0) {
      const float log = row[lane * width + channels + head], step = row[lane * width + channels + heads + head];
      logs[lane] = log;
      steps[lane] = step;
      until[lane] = exp(simd_prefix_inclusive_sum(log));
      behind[lane] = exp(logs_behind(log, lane)) * step;
    }
    for (uint tile = simdgroup; tile < tiles * (tiles + 1) / 2; tile += simdgroups) { // C . B, of tokens up to each
      uint i = 0, j = tile;
      for (; j > i; ++i)
        j -= i + 1;
      Matrix sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f), left, right;
      for (int r = 0; r < N / 8; ++r) {
        simdgroup_load(left, c + ulong(i * 8) * width + r * 8, width);
        simdgroup_load(right, b + ulong(j * 8) * width + r * 8, width, ulong2(0, 0), true);
        multiply_accumulate_near(sum, left, right);
      }
      simdgroup_store(sum, &scores[i * 8][j * 8], chunk);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint from = simdgroup * 4; from < uint(chunk); from += simdgroups * 4) { // what each takes of token `lane`
      float log = logs_between(logs, lane, from);
      for (uint to = from; to < from + 4; ++to) {
        log += to > lane ? logs[to] : 0.0f;
        const float score = lane <= to ? exp(log) * steps[lane] * scores[to][lane] : 0.0f;
        scores[to][lane] = lane == to ? score + skip : score;
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (idle) continue;

    Matrix inputs[tiles];
    for (int i = 0; i < tiles; ++i)
      simdgroup_load(inputs[i], x + ulong(i * 8) * width, width);
    for (int i = 0; i < tiles; ++i) {
      Matrix sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f), left;
      for (int r = 0; r < N / 8; ++r) {
        simdgroup_load(left, c + ulong(i * 8) * width + r * 8, width);
        multiply_accumulate_near(sum, left, state[r]);
      }
      for (int e = 0; e < 2; ++e)
        sum.thread_elements()[e] *= until[i * 8 + own.row];
      for (int j = 0; j <= i; ++j) {
        simdgroup_load(left, &scores[i * 8][j * 8], chunk);
        multiply_accumulate_near(sum, left, inputs[j]);
      }
      const uint t = start + i * 8 + own.row;
      if (t < tokens)
        for (int e = 0; e < 2; ++e)
          y[((first + t) * heads + head) * P + column + own.column + e] = sum.thread_elements()[e];
    }
    for (int i = 0; i < tiles; ++i)
      for (int e = 0; e < 2; ++e)
        inputs[i].thread_elements()[e] *= behind[i * 8 + own.row];
    const float decay = until[chunk - 1];
    for (int r = 0; r < N / 8; ++r) {
      for (int e = 0; e < 2; ++e)
        state[r].thread_elements()[e] *= decay;
      for (int i = 0; i < tiles; ++i) {
        Matrix left;
        simdgroup_load(left, b + ulong(i * 8) * width + r * 8, width, ulong2(0, 0), true);
        multiply_accumulate_near(state[r], left, inputs[i]);
      }
    }
  }
  if (idle) return;
  device float* after = states + (ulong(slots[(begin + 1) % args.slots]) * heads + head) * (P * N);
  for (int r = 0; r < N / 8; ++r)
    simdgroup_store(state[r], after + column * N + r * 8, N, ulong2(0, 0), true);
}
