// The gated delta rule over many tokens, a chunk at a time, by matrix products. Three launches: the inputs of the
// recurrence (convolution, norms, gates) go to rows of floats, the recurrence puts outputs in the place of values, and
// the gated norm takes them from there.
//
// In a chunk that begins with state S, with D[i] the product of the decays up to token i, the changes E of its tokens,
//   e_i = beta_i (v_i - D[i] S^T k_i - sum over j < i of D[i] / D[j] (k_i . k_j) e_j),
// are found by forward substitution; then o_i = D[i] S^T q_i + sum over j <= i of D[i] / D[j] (q_i . k_j) e_j, and the
// state behind it is D[last] S + sum over i of D[last] / D[i] k_i e_i^T.
#include "mixers/gated_delta.h"

#include "common/matrix_pairs.h"

#include "mixers/chunks.h"
#include "mixers/gated_delta_inputs.h"

using namespace metal;
using namespace foundry;

// A row is all channels after convolution and norms, then log decays, then betas, of all value heads. A simdgroup
// makes what one head of q, k or v has of it.
// foundry-lint: instance(gated_delta_inputs<half, float, 128, 128, 4>)
template <typename T, typename Gate, int DK, int DV, int W>
[[kernel]] void gated_delta_inputs(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const T* b [[buffer(3)]],
    device const T* a [[buffer(4)]],
    device const T* conv_weight [[buffer(5)]],
    device const Gate* a_log [[buffer(6)]],
    device const Gate* dt_bias [[buffer(7)]],
    device T* conv_states [[buffer(8)]],
    device const int* runs [[buffer(9)]],
    device const int* table [[buffer(10)]],
    device const int* count [[buffer(11)]],
    device float* rows [[buffer(12)]],
    constant GatedDeltaArgs& args [[buffer(13)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint tokens = runs[group.y * args.runs_stride + 1], first = runs[group.y * args.runs_stride];
  if (tokens < args.slots) return;
  const uint heads = args.key_heads * args.per_key, key_channels = args.key_heads * DK;
  const uint channels = 2 * key_channels + heads * DV, width = channels + 2 * heads;
  const uint begin = count[group.y * args.count_stride];
  device const int* slots = table + group.y * args.table_stride;
  device const T* before = conv_states + ulong(begin == 0 ? 0 : slots[begin % args.slots]) * channels * W;
  device T* after = conv_states + ulong(slots[(begin + 1) % args.slots]) * channels * W;

  const bool is_value = group.x >= 2 * args.key_heads, is_key = group.x >= args.key_heads;
  const uint head = group.x - (is_value ? 2 * args.key_heads : is_key ? args.key_heads : 0);
  const uint key_head = is_value ? head / args.per_key : head, sub_head = is_value ? head % args.per_key : 0;
  const uint channel = is_value ? 2 * key_channels + head * DV : (is_key ? key_channels : 0) + head * DK;
  const uint stride = is_value ? args.v.token : is_key ? args.k.token : args.q.token;
  device const T* x = is_value ? v + offset(args.v, first, key_head, sub_head)
                      : is_key ? k + offset(args.k, first, key_head, 0)
                               : q + offset(args.q, first, key_head, 0);
  const int columns = is_value ? DV : DK;
  const uint padded = rows_of(tokens), row = first_row(runs, args.runs_stride, group.y);

  for (uint t = group.z * 4 + simdgroup; t < padded; t += groups.z * 4) {
    device float* to = rows + ulong(row + t) * width;
    float found[(DK > DV ? DK : DV) / 8], square = 0.0f; // more than a lane has
    for (int c = 0; lane + 32 * c < uint(columns); ++c) {
      const uint column = lane + 32 * c;
      found[c] = 0.0f;
      if (t < tokens) {
        T last[W];
        last_inputs<T, W>(x + column, stride, t, before + ulong(channel + column) * W, begin != 0, last);
        found[c] = convolve<T, W>(last, conv_weight + ulong(channel + column) * W);
        if (t + 1 == tokens)
          for (int w = 0; w < W; ++w)
            after[ulong(channel + column) * W + w] = last[w];
      }
      square = fma(found[c], found[c], square);
    }
    const float unit = rsqrt(simd_sum(square) + 1e-6f);
    const float scale = is_value ? 1.0f : is_key ? unit : unit * rsqrt(float(DK));
    for (int c = 0; lane + 32 * c < uint(columns); ++c)
      to[channel + lane + 32 * c] = found[c] * scale;
    if (is_value && lane == 0) {
      const uint token = first + (t < tokens ? t : 0);
      const float step = float(a[offset(args.a, token, key_head, sub_head)]) + float(dt_bias[head]);
      const float beta = args.beta_scale * sigmoid(float(b[offset(args.b, token, key_head, sub_head)]));
      to[channels + head] = t < tokens ? -exp(float(a_log[head])) * softplus(step) : 0.0f;
      to[channels + heads + head] = t < tokens ? beta : 0.0f;
    }
  }
}

// A threadgroup has 32 columns of a value head's state, a simdgroup 8 of them, in registers.
// foundry-lint: instance(gated_delta_chunks<128, 128>)
template <int DK, int DV>
[[kernel]] void gated_delta_chunks(
    device float* rows [[buffer(0)]],
    device float* states [[buffer(1)]],
    device const int* runs [[buffer(2)]],
    device const int* table [[buffer(3)]],
    device const int* count [[buffer(4)]],
    constant GatedDeltaArgs& args [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float keys[chunk][chunk], queries[chunk][chunk], changes[chunk][chunk];
  threadgroup float diagonal[4][tiles][8][8], logs[chunk], betas[chunk], all[1];
  const uint tokens = runs[group.y * args.runs_stride + 1];
  if (tokens < args.slots) return;
  const uint heads = args.key_heads * args.per_key, key_channels = args.key_heads * DK, head = group.x;
  const uint channels = 2 * key_channels + heads * DV, width = channels + 2 * heads;
  const uint begin = count[group.y * args.count_stride];
  device const int* slots = table + group.y * args.table_stride;
  const uint column = group.z * 32 + simdgroup * 8, own = simdgroup * 8;

  Matrix state[DK / 8];
  device float* before = states + (ulong(begin == 0 ? 0 : slots[begin % args.slots]) * heads + head) * (DK * DV);
  for (int r = 0; r < DK / 8; ++r) {
    state[r] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    if (begin != 0) simdgroup_load(state[r], before + r * 8 * DV + column, DV);
  }
  for (uint i = tid; i < 4 * tiles * 64; i += 128)
    ((threadgroup float*)diagonal)[i] = 0.0f;

  device float* row = rows + ulong(first_row(runs, args.runs_stride, group.y)) * width;
  for (uint start = 0; start < tokens; start += chunk, row += ulong(chunk) * width) {
    device float* q = row + head / args.per_key * DK;
    device float* k = q + key_channels;
    device float* v = row + 2 * key_channels + head * DV + column;
    threadgroup_barrier(mem_flags::mem_threadgroup); // the chunk before is done with

    if (simdgroup == 0) { // matrices that scale rows by products of decays
      const float beta = row[lane * width + channels + heads + head], log = row[lane * width + channels + head];
      const float sum = simd_prefix_inclusive_sum(log);
      logs[lane] = log;
      betas[lane] = beta;
      if (lane == 31) all[0] = sum;
      diagonal[0][lane / 8][lane % 8][lane % 8] = exp(sum);
      diagonal[1][lane / 8][lane % 8][lane % 8] = -beta * exp(sum);
      diagonal[2][lane / 8][lane % 8][lane % 8] = beta;
      diagonal[3][lane / 8][lane % 8][lane % 8] = exp(logs_behind(log, lane));
    }
    for (uint j = 0; j <= simdgroup; ++j) { // products of this simdgroup's 8 tokens with those up to them
      Matrix with_k = make_filled_simdgroup_matrix<float, 8, 8>(0.0f), with_q = with_k;
      for (int r = 0; r < DK / 8; ++r) {
        Matrix left, right;
        simdgroup_load(right, k + ulong(j * 8) * width + r * 8, width, ulong2(0, 0), true);
        simdgroup_load(left, k + ulong(simdgroup * 8) * width + r * 8, width);
        multiply_accumulate_near(with_k, left, right);
        simdgroup_load(left, q + ulong(simdgroup * 8) * width + r * 8, width);
        multiply_accumulate_near(with_q, left, right);
      }
      simdgroup_store(with_k, &keys[simdgroup * 8][j * 8], chunk);
      simdgroup_store(with_q, &queries[simdgroup * 8][j * 8], chunk);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float log = logs_between(logs, lane, own); // between token `lane` and `to`
    for (uint to = own; to < own + 8; ++to) {
      log += to > lane ? logs[to] : 0.0f;
      keys[to][lane] = lane < to ? -betas[to] * exp(log) * keys[to][lane] : 0.0f;
      queries[to][lane] = lane <= to ? exp(log) * queries[to][lane] : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);

    Matrix change[tiles], out[tiles];
    for (int i = 0; i < tiles; ++i) {
      Matrix with_k = make_filled_simdgroup_matrix<float, 8, 8>(0.0f), with_q = with_k, left, right;
      for (int r = 0; r < DK / 8; ++r) {
        simdgroup_load(left, k + ulong(i * 8) * width + r * 8, width);
        multiply_accumulate_near(with_k, left, state[r]);
        simdgroup_load(left, q + ulong(i * 8) * width + r * 8, width);
        multiply_accumulate_near(with_q, left, state[r]);
      }
      out[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      simdgroup_load(left, &diagonal[0][i][0][0], 8);
      multiply_accumulate_near(out[i], left, with_q);
      Matrix sum = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      simdgroup_load(left, &diagonal[2][i][0][0], 8);
      simdgroup_load(right, v + ulong(i * 8) * width, width);
      multiply_accumulate_near(sum, left, right);
      simdgroup_load(left, &diagonal[1][i][0][0], 8);
      multiply_accumulate_near(sum, left, with_k);
      for (int j = 0; j < i; ++j) {
        simdgroup_load(left, &keys[i * 8][j * 8], chunk);
        multiply_accumulate_near(sum, left, change[j]);
      }
      simdgroup_store(sum, &changes[i * 8][own], chunk);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      if (lane < 8) // its column of the 8 tokens, one after the other
        for (int t = 1; t < 8; ++t) {
          float e = changes[i * 8 + t][own + lane];
          for (int j = 0; j < t; ++j)
            e = fma(keys[i * 8 + t][i * 8 + j], changes[i * 8 + j][own + lane], e);
          changes[i * 8 + t][own + lane] = e;
        }
      simdgroup_barrier(mem_flags::mem_threadgroup);
      simdgroup_load(change[i], &changes[i * 8][own], chunk);
      for (int j = 0; j <= i; ++j) {
        simdgroup_load(left, &queries[i * 8][j * 8], chunk);
        multiply_accumulate_near(out[i], left, change[j]);
      }
      simdgroup_store(out[i], v + ulong(i * 8) * width, width);
    }
    const float decay = exp(all[0]);
    for (int i = 0; i < tiles; ++i) {
      Matrix left, scaled = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      simdgroup_load(left, &diagonal[3][i][0][0], 8);
      multiply_accumulate_near(scaled, left, change[i]);
      change[i] = scaled;
    }
    for (int r = 0; r < DK / 8; ++r) {
      for (int e = 0; e < 2; ++e)
        state[r].thread_elements()[e] *= decay;
      for (int i = 0; i < tiles; ++i) {
        Matrix left;
        simdgroup_load(left, k + ulong(i * 8) * width + r * 8, width, ulong2(0, 0), true);
        multiply_accumulate_near(state[r], left, change[i]);
      }
    }
  }
  device float* after = states + (ulong(slots[(begin + 1) % args.slots]) * heads + head) * (DK * DV);
  for (int r = 0; r < DK / 8; ++r)
    simdgroup_store(state[r], after + r * 8 * DV + column, DV);
}

// y = RMSNorm(o) silu(z); a simdgroup has a head of a token.
// foundry-lint: instance(gated_delta_outputs<half, 128, 128>)
template <typename T, int DK, int DV>
[[kernel]] void gated_delta_outputs(
    device const float* rows [[buffer(0)]],
    device const T* z [[buffer(1)]],
    device const T* norm_weight [[buffer(2)]],
    device const int* runs [[buffer(3)]],
    device T* y [[buffer(4)]],
    constant GatedDeltaArgs& args [[buffer(5)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  const uint tokens = runs[group.y * args.runs_stride + 1], first = runs[group.y * args.runs_stride];
  if (tokens < args.slots) return;
  const uint heads = args.key_heads * args.per_key, head = group.x, own = 2 * args.key_heads * DK + head * DV;
  const uint width = 2 * args.key_heads * DK + heads * DV + 2 * heads;
  const uint row = first_row(runs, args.runs_stride, group.y);
  for (uint t = group.z * 4 + simdgroup; t < tokens; t += groups.z * 4) {
    float o[DV / 32], square = 0.0f;
    for (int c = 0; c < DV / 32; ++c) {
      o[c] = rows[ulong(row + t) * width + own + lane + 32 * c];
      square = fma(o[c], o[c], square);
    }
    const float inverse = rsqrt(simd_sum(square) / float(DV) + args.eps);
    device const T* gate = z + offset(args.z, first + t, head / args.per_key, head % args.per_key);
    for (int c = 0; c < DV / 32; ++c) {
      const uint column = lane + 32 * c;
      y[((first + t) * heads + head) * DV + column] =
          T(o[c] * inverse * float(norm_weight[column]) * Silu::apply(float(gate[column])));
    }
  }
}
