// What a chunk's tokens need of each other in the gated delta rule: T and A of gated_delta_prompt.metal.
#include "mixers/gated_delta.h"

#include "common/matrix_pairs.h"

#include "mixers/chunks.h"
#include "mixers/gated_delta_inputs.h"

using namespace metal;
using namespace foundry;

// T by forward substitution, a column each. products: minus beta of a row, and its decayed products with those before.
METAL_FUNC void substitute(threadgroup const float (&products)[chunk][chunk],
                           threadgroup float (&solution)[chunk][chunk], float beta, device float* of_changes,
                           uint lane) {
  for (int t = 0; t < chunk; ++t) {
    float sum = t == int(lane) ? beta : 0.0f;
    for (int j = 0; j < t; ++j)
      sum = fma(products[t][j], solution[j][lane], sum);
    solution[t][lane] = sum;
    of_changes[t * chunk + lane] = sum;
  }
}

// T and A of a chunk of a value head, a threadgroup for each.
// foundry-lint: instance(gated_delta_solve<128, 128, 1>)
template <int DK, int DV, int D>
[[kernel]] void gated_delta_solve(
    device const float* rows [[buffer(0)]],
    device const int* runs [[buffer(1)]],
    device float* solved [[buffer(2)]], // [chunks, heads, 2, chunk, chunk]
    constant GatedDeltaArgs& args [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float keys[chunk][chunk], queries[chunk][chunk], logs[chunk], betas[chunk];
  const uint tokens = runs[group.y * args.runs_stride + 1];
  if (tokens < args.slots) return;
  const uint heads = args.key_heads * args.per_key, key_channels = args.key_heads * DK, head = group.x;
  const uint channels = 2 * key_channels + heads * DV, width = channels + 2 * heads;
  const uint first = first_row(runs, args.runs_stride, group.y);
  for (uint start = group.z * chunk; start < tokens; start += groups.z * chunk) {
    device const float* row = rows + ulong(first + start) * width;
    device const float* q = row + head / args.per_key * DK;
    device const float* k = q + key_channels;
    device float* of_changes = solved + (ulong((first + start) / chunk) * heads + head) * gated_delta_solved(1);
    device float* of_outputs = of_changes + chunk * chunk;
    threadgroup_barrier(mem_flags::mem_threadgroup); // the chunk before is done with
    if (simdgroup == 0) {
      logs[lane] = row[lane * width + channels + head];
      betas[lane] = row[lane * width + channels + heads + head];
    }
    for (uint tile = simdgroup; tile < tiles * (tiles + 1) / 2; tile += 4) { // products of tokens with those up to each
      uint i = 0, j = tile;
      for (; j > i; ++i)
        j -= i + 1;
      Matrix sums[2], left[2], right; // of k, and of q
      sums[0] = sums[1] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      for (int r = 0; r < DK / 8; ++r) {
        simdgroup_load(right, k + ulong(j * 8) * width + r * 8, width, ulong2(0, 0), true);
        simdgroup_load(left[0], k + ulong(i * 8) * width + r * 8, width);
        simdgroup_load(left[1], q + ulong(i * 8) * width + r * 8, width);
        multiply_accumulate_near_2x1(sums, left, right);
      }
      simdgroup_store(sums[0], &keys[i * 8][j * 8], chunk);
      simdgroup_store(sums[1], &queries[i * 8][j * 8], chunk);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float log = logs_between(logs, lane, simdgroup * 8); // between token `lane` and `to`
    for (uint to = simdgroup * 8; to < simdgroup * 8 + 8; ++to) {
      log += to > lane ? logs[to] : 0.0f;
      keys[to][lane] = lane < to ? -betas[to] * exp(log) * keys[to][lane] : 0.0f;
      of_outputs[to * chunk + lane] = lane <= to ? exp(log) * queries[to][lane] : 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup == 0) substitute(keys, queries, betas[lane], of_changes, lane);
  }
}

// The same where each row of the state has a decay of its own, so that no product of matrices has all pairs of tokens.
// Queries and keys are replaced by what the recurrence takes of them, logarithms by keys with the decays behind them.
// foundry-lint: instance(gated_delta_solve_rows<128, 128, 128>)
template <int DK, int DV, int D>
[[kernel]] void gated_delta_solve_rows(
    device float* rows [[buffer(0)]],
    device const int* runs [[buffer(1)]],
    device float* solved [[buffer(2)]], // the same, and behind them a chunk's decays
    constant GatedDeltaArgs& args [[buffer(3)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float keys[chunk][chunk], solution[chunk][chunk];
  constexpr int parts = (DK + 31) / 32;
  const uint tokens = runs[group.y * args.runs_stride + 1];
  if (tokens < args.slots) return;
  const uint heads = args.key_heads, head = group.x;
  const uint channels = heads * (2 * DK + DV), width = channels + (D + 1) * heads;
  const uint first = first_row(runs, args.runs_stride, group.y);
  for (uint start = group.z * chunk; start < tokens; start += groups.z * chunk) {
    device float* row = rows + ulong(first + start) * width;
    device float* q = row + head * DK;
    device float* k = q + heads * DK;
    device float* g = row + channels + head * D;
    device const float* betas = row + channels + heads * D + head;
    device float* of_changes = solved + (ulong((first + start) / chunk) * heads + head) * gated_delta_solved(D);
    device float* of_outputs = of_changes + chunk * chunk;
    device float* decays = of_outputs + chunk * chunk;
    threadgroup_barrier(mem_flags::mem_threadgroup); // the chunk before is done with
    for (int i = int(simdgroup); i < chunk; i += 4) { // a token with those up to it, the nearest first
      float query[parts], key[parts], log[parts], of_key = 0.0f, of_query = 0.0f;
      for (int c = 0; c < parts; ++c) {
        const uint d = lane + 32 * c, at = i * width + d;
        query[c] = d < DK ? q[at] : 0.0f, key[c] = d < DK ? k[at] : 0.0f, log[c] = 0.0f;
      }
      for (int j = i; j >= 0; --j) {
        float with_key = 0.0f, with_query = 0.0f;
        for (int c = 0; c < parts; ++c) {
          const uint d = lane + 32 * c, at = j * width + d;
          const float other = d < DK ? exp(log[c]) * k[at] : 0.0f;
          with_key = fma(key[c], other, with_key);
          with_query = fma(query[c], other, with_query);
          log[c] += d < DK ? g[at] : 0.0f;
        }
        with_key = simd_sum(with_key), with_query = simd_sum(with_query);
        if (int(lane) == j) of_key = with_key, of_query = with_query;
      }
      keys[i][lane] = -betas[i * width] * of_key;
      of_outputs[i * chunk + lane] = of_query;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup | mem_flags::mem_device); // all have read what is replaced now
    for (uint d = tid; d < DK; d += 128) {
      float behind = 0.0f; // the tokens of these eight
      for (int first8 = chunk - 8; first8 >= 0; first8 -= 8) {
        float logs[8], until = 0.0f;
        for (int t = 0; t < first8; ++t)
          until += g[t * width + d];
#pragma unroll
        for (int t = 7; t >= 0; --t) {
          const uint at = (first8 + t) * width + d;
          logs[t] = g[at];
          g[at] = k[at] * exp(behind);
          behind += logs[t];
        }
#pragma unroll
        for (int t = 0; t < 8; ++t) {
          const uint at = (first8 + t) * width + d;
          until += logs[t];
          q[at] *= exp(until);
          k[at] *= exp(until);
        }
      }
      decays[d] = exp(behind);
    }
    if (simdgroup == 0) substitute(keys, solution, betas[lane * width], of_changes, lane);
  }
}
