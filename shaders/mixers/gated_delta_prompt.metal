// The gated delta rule over many tokens, a chunk at a time, by matrix products. Four launches: the inputs of the
// recurrence (convolution, norms, gates) go to rows of floats, what a chunk's tokens need of each other to matrices
// (gated_delta_solve.metal), the recurrence puts outputs in the place of values, and the gated norm takes them from
// there.
//
// In a chunk that begins with state S, with D[i] the product of the decays up to token i, the changes E of its tokens,
//   e_i = beta_i (v_i - D[i] S^T k_i - sum over j < i of D[i] / D[j] (k_i . k_j) e_j),
// are T (V - D K S), T being the inverse of a triangular matrix times beta; with A, the changes' weights in outputs,
//   o_i = D[i] S^T q_i + sum over j <= i of A[i][j] e_j, A[i][j] = D[i] / D[j] (q_i . k_j),
// and the state behind it is D[last] S + sum over i of D[last] / D[i] k_i e_i^T. T and A need no state, so those of all
// chunks are computed at once. Where each row of S has a decay of its own, D is a vector, and queries and keys come as
// D[i] * q_i, D[i] * k_i and D[last] / D[i] * k_i.
#include "mixers/gated_delta.h"

#include "common/matrix_pairs.h"

#include "mixers/chunks.h"
#include "mixers/gated_delta_inputs.h"

using namespace metal;
using namespace foundry;

// A row is all channels after convolution and norms, then log decays, D of each value head, then their betas. A
// simdgroup makes what one head of q, k or v has of it, of four tokens, whose windows of the convolution overlap.
// foundry-lint: instance(gated_delta_inputs<half, float, 128, 128, 1, 4>)
// foundry-lint: instance(gated_delta_inputs<half, float, 128, 128, 128, 4>)
template <typename T, typename Gate, int DK, int DV, int D, int W>
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
  const uint channels = 2 * key_channels + heads * DV, width = channels + (D + 1) * heads;
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
  constexpr int most = ((DK > DV ? DK : DV) + 31) / 32; // that a lane has
  const uint padded = rows_of(tokens), row = first_row(runs, args.runs_stride, group.y);

  for (uint from = (group.z * 4 + simdgroup) * 4; from < padded; from += groups.z * 16) {
    T last[most][W];
    for (int c = 0; c < most; ++c)
      if (from < tokens && int(lane) + 32 * c < columns) // behind a run there is nothing to read
        last_inputs<T, W>(x + lane + 32 * c, stride, int(from) - 1, before + ulong(channel + lane + 32 * c) * W,
                          begin != 0, last[c]);
    for (uint t = from; t < from + 4; ++t) {
      device float* to = rows + ulong(row + t) * width;
      float found[most], square = 0.0f;
      for (int c = 0; c < most; ++c) {
        const uint column = lane + 32 * c;
        found[c] = 0.0f;
        if (t < tokens && int(column) < columns) {
          for (int w = 1; w < W; ++w)
            last[c][w - 1] = last[c][w];
          last[c][W - 1] = x[t * stride + column];
          found[c] = convolve<T, W>(last[c], conv_weight + ulong(channel + column) * W);
          if (t + 1 == tokens)
            for (int w = 0; w < W; ++w)
              after[ulong(channel + column) * W + w] = last[c][w];
        }
        square = fma(found[c], found[c], square);
      }
      const float unit = rsqrt(simd_sum(square) + 1e-6f);
      const float scale = is_value ? 1.0f : is_key ? unit : unit * rsqrt(float(DK));
      for (int c = 0; c < most; ++c)
        if (int(lane) + 32 * c < columns) to[channel + lane + 32 * c] = found[c] * scale;
      if (is_value) {
        const uint token = first + (t < tokens ? t : 0);
        for (uint d = lane; d < D; d += 32) {
          const float step = float(a[offset(args.a, token, key_head, sub_head) + d]) + float(dt_bias[head * D + d]);
          to[channels + head * D + d] = t < tokens ? log_decay(step, float(a_log[head]), args) : 0.0f;
        }
        const float beta = args.beta_scale * sigmoid(float(b[offset(args.b, token, key_head, sub_head)]));
        if (lane == 0) to[channels + heads * D + head] = t < tokens ? beta : 0.0f;
      }
    }
  }
}

// Whether keys have a part of eight of this number: four simdgroups share them by pairs of eights.
template <int DK> METAL_FUNC bool has_eight(int number) { return DK % 64 == 0 || number < DK / 8; }

// A lane's part of a product, of which each of four simdgroups has a sum over its rows of the state.
METAL_FUNC float2 sum_of_quarters(threadgroup const float2 (&sums)[4][tiles][2][2][32], uint tile, int column, int of,
                                  uint lane) {
  return (sums[0][tile][column][of][lane] + sums[1][tile][column][of][lane]) +
         (sums[2][tile][column][of][lane] + sums[3][tile][column][of][lane]);
}

// A threadgroup has 16 columns of a value head's state, a simdgroup a quarter of their rows, in registers.
// foundry-lint: instance(gated_delta_chunks<128, 128, 1>)
// foundry-lint: instance(gated_delta_chunks<128, 128, 128>)
template <int DK, int DV, int D>
[[kernel]] void gated_delta_chunks(
    device float* rows [[buffer(0)]],
    device const float* solved [[buffer(1)]],
    device float* states [[buffer(2)]],
    device const int* runs [[buffer(3)]],
    device const int* table [[buffer(4)]],
    device const int* count [[buffer(5)]],
    constant GatedDeltaArgs& args [[buffer(6)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float2 sums[4][tiles][2][2][32]; // of each quarter of the rows
  const uint tokens = runs[group.y * args.runs_stride + 1];
  if (tokens < args.slots) return;
  const uint heads = args.key_heads * args.per_key, key_channels = args.key_heads * DK, head = group.x;
  const uint channels = 2 * key_channels + heads * DV, width = channels + (D + 1) * heads;
  const uint begin = count[group.y * args.count_stride];
  device const int* slots = table + group.y * args.table_stride;
  const uint column = group.z * gated_delta_chunk_columns, own_tile = simdgroup; // of the tokens, whose outputs it has
  const Fragment own = fragment_of(lane);
  constexpr int pairs = (DK / 8 + 7) / 8; // of eights of rows
  const int first8 = int(simdgroup) * 2 * pairs;

  Matrix state[pairs][2][2]; // two eights of rows, of eight columns each
  const ulong place = ulong(first8 * 8) * DV + column;
  const ulong source = begin == 0 ? 0 : slots[begin % args.slots];
  device const float* before = states + (source * heads + head) * (DK * DV) + place;
  for (int r = 0; r < 2 * pairs; ++r)
    for (int c = 0; c < 2; ++c) {
      state[r / 2][c][r % 2] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      if (begin != 0 && has_eight<DK>(first8 + r))
        simdgroup_load(state[r / 2][c][r % 2], before + r * 8 * DV + c * 8, DV);
    }

  const uint first = first_row(runs, args.runs_stride, group.y);
  device float* row = rows + ulong(first) * width;
  constexpr uint each = gated_delta_solved(D);
  device const float* of_changes = solved + (ulong(first / chunk) * heads + head) * each;
  for (uint start = 0; start < tokens; start += chunk, row += ulong(chunk) * width) {
    device const float* q = row + head / args.per_key * DK + first8 * 8;
    device const float* k = q + key_channels;
    device float* v = row + 2 * key_channels + head * DV + column;
    device const float* of_outputs = of_changes + (chunk + own_tile * 8) * chunk;
    device const float* rest = D == 1 ? k : row + channels + head * D + first8 * 8; // keys with what decays behind them
    device const float* decays = of_changes + 2 * chunk * chunk + first8 * 8 + own.row;
    const float log = D == 1 ? row[lane * width + channels + head] : 0.0f;
    const float until = exp(simd_prefix_inclusive_sum(log)), behind = exp(logs_behind(log, lane));

    Matrix change[2][tiles], left[2];
    {
      Matrix products[tiles][2][2]; // K S and Q S
      for (int i = 0; i < tiles; ++i)
        for (int c = 0; c < 2; ++c)
          products[i][c][0] = products[i][c][1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      for (int r = 0; r < 2 * pairs; ++r)
        for (int i = 0; i < tiles && has_eight<DK>(first8 + r); ++i) {
          simdgroup_load(left[0], k + ulong(i * 8) * width + r * 8, width);
          simdgroup_load(left[1], q + ulong(i * 8) * width + r * 8, width);
          for (int c = 0; c < 2; ++c)
            multiply_accumulate_near_2x1(products[i][c], left, state[r / 2][c][r % 2]);
        }
      for (int i = 0; i < tiles; ++i)
        for (int c = 0; c < 2; ++c)
          simdgroup_load(change[c][i], v + ulong(i * 8) * width + c * 8, width);
      threadgroup_barrier(mem_flags::mem_threadgroup); // the chunk before is done with
      for (int i = 0; i < tiles; ++i)
        for (int c = 0; c < 2; ++c)
          for (int n = 0; n < 2; ++n)
            sums[simdgroup][i][c][n][lane] = products[i][c][n].thread_elements();
    }
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device); // outputs take the place of values
    for (int i = 0; i < tiles; ++i) { // V - D K S
      const float decay = simd_shuffle(until, ushort(i * 8 + own.row));
      for (int c = 0; c < 2; ++c) {
        const float2 product = sum_of_quarters(sums, i, c, 0, lane);
        for (int e = 0; e < 2; ++e)
          change[c][i].thread_elements()[e] = fma(-decay, product[e], change[c][i].thread_elements()[e]);
      }
    }
    for (int p = tiles / 2 - 1; p >= 0; --p) { // those before a pair are still V - D K S
      Matrix solution[2][2];
      for (int c = 0; c < 2; ++c)
        solution[c][0] = solution[c][1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      for (int j = 0; j < 2 * p + 2; ++j) {
        for (int i = 0; i < 2; ++i)
          simdgroup_load(left[i], of_changes + (2 * p + i) * 8 * chunk + j * 8, chunk);
        for (int c = 0; c < 2; ++c)
          multiply_accumulate_near_2x1(solution[c], left, change[c][j]);
      }
      for (int c = 0; c < 2; ++c)
        change[c][2 * p] = solution[c][0], change[c][2 * p + 1] = solution[c][1];
    }
    const float decay_to_own = simd_shuffle(until, ushort(own_tile * 8 + own.row));
    for (int c = 0; c < 2; ++c) { // D Q S, and what changes add to it
      Matrix out;
      const float2 product = sum_of_quarters(sums, own_tile, c, 1, lane);
      for (int e = 0; e < 2; ++e)
        out.thread_elements()[e] = decay_to_own * product[e];
      for (int j = 0; j < tiles; ++j)
        if (j <= int(own_tile)) {
          simdgroup_load(left[0], of_outputs + j * 8, chunk);
          multiply_accumulate_near(out, left[0], change[c][j]);
        }
      simdgroup_store(out, v + ulong(own_tile * 8) * width + c * 8, width);
    }
    for (int i = 0; i < tiles; ++i)
      for (int c = 0; c < 2; ++c)
        for (int e = 0; e < 2; ++e)
          change[c][i].thread_elements()[e] *= simd_shuffle(behind, ushort(i * 8 + own.row));
    const float of_all = simd_shuffle(until, ushort(chunk - 1));
    for (int p = 0; p < pairs; ++p) {
      for (int i = 0; i < 2; ++i) {
        const float decay = D == 1 ? of_all : has_eight<DK>(first8 + 2 * p + i) ? decays[(2 * p + i) * 8] : 0.0f;
        for (int c = 0; c < 2; ++c)
          for (int e = 0; e < 2; ++e)
            state[p][c][i].thread_elements()[e] *= decay;
      }
      for (int j = 0; j < tiles; ++j) {
        for (int i = 0; i < 2; ++i) {
          left[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
          if (has_eight<DK>(first8 + 2 * p + i))
            simdgroup_load(left[i], rest + ulong(j * 8) * width + (2 * p + i) * 8, width, ulong2(0, 0), true);
        }
        for (int c = 0; c < 2; ++c)
          multiply_accumulate_near_2x1(state[p][c], left, change[c][j]);
      }
    }
    of_changes += ulong(heads) * each;
  }
  device float* after = states + (ulong(slots[(begin + 1) % args.slots]) * heads + head) * (DK * DV) + place;
  for (int r = 0; r < 2 * pairs; ++r)
    for (int c = 0; c < 2; ++c)
      if (has_eight<DK>(first8 + r)) simdgroup_store(state[r / 2][c][r % 2], after + r * 8 * DV + c * 8, DV);
}

// y = RMSNorm(o) silu(z), or sigmoid(z); a simdgroup has a head of a token.
// foundry-lint: instance(gated_delta_outputs<half, 128, 128, 1>)
// foundry-lint: instance(gated_delta_outputs<half, 128, 128, 128>)
template <typename T, int DK, int DV, int D>
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
  const uint width = 2 * args.key_heads * DK + heads * (DV + D + 1);
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
          T(o[c] * inverse * float(norm_weight[column]) * output_gate(float(gate[column]), args));
    }
  }
}
