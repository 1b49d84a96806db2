// How a simdgroup makes a head of a new token: its norm and its rotation. Then it's written to a cache (rope_kv.metal,
// rope_kv_dense.metal), or attention begins with it.
#pragma once
#include "attention/heads.h"

#include "attention/rope_constants.h"
#include "attention/row_norm.h"
#include "norm/norm_kinds.h"

namespace foundry {

// A head of up to 32 * EACH elements: a lane has EACH neighbours. FULL: it has as many as that.
template <int EACH, bool FULL = false> struct Head {
  uint batch, token, head;
  float x[EACH];

  METAL_FUNC uint columns(constant RopeKvArgs& args) const thread {
    return FULL ? 32 * EACH : is_value(args, head) ? args.value_dim : args.head_dim;
  }
  // Writes it as elements E of `row`, which may be memory of a device or a threadgroup.
  template <typename E, typename Row>
  METAL_FUNC void write(constant RopeKvArgs& args, Row row, uint lane) const thread {
    const uint rotates = is_value(args, head) ? 0 : args.rotary_dim;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const uint i = lane * EACH + e;
      if (FULL || i < columns(args)) row[args.deinterleave && i < rotates ? angle_of(args, i) : i] = E(x[e]);
    }
  }
};

// What the projections of new tokens gave, and what becomes of their heads.
template <typename T, typename Table, typename Kind> struct NewHeads {
  device const T *q, *k, *v;
  device const Table *cosines, *sines;
  device const int* positions;
  device const T *q_norm, *k_norm;

  template <int EACH, bool FULL>
  METAL_FUNC void read(constant RopeKvArgs& args, thread Head<EACH, FULL>& h, uint lane) const thread {
    device const T* in = head_in(args, h.batch, h.token, h.head, q, k, v) + lane * EACH;
#pragma unroll
    for (int e = 0; e < EACH; ++e) h.x[e] = FULL || lane * EACH + e < h.columns(args) ? float(in[e]) : 0.0f;
  }

  // Makes what was read: leaves its elements rounded to T. All that this needs is read before anything is computed, so
  // that no lane waits twice. norms: whether q and k heads have them. memory: of this simdgroup, whose lanes must all
  // call this, for a head's floats.
  template <int EACH, bool FULL>
  METAL_FUNC void make(constant RopeKvArgs& args, bool norms, thread Head<EACH, FULL>& h, threadgroup float* memory,
                       uint lane) const thread {
    const bool value = is_value(args, h.head), weighted = norms && !value;
    const uint rotates = value || !has_rope ? 0 : args.rotary_dim, columns = h.columns(args);
    device const T* weights = norm_of(args, h.head, q_norm, k_norm) + lane * EACH;
    const Angles angles = angles_of(args, positions, h.batch, h.token, h.head);
    float weight[EACH], cos[EACH], sin[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const uint i = lane * EACH + e;
      if (weighted && (FULL || i < columns)) weight[e] = float(weights[e]);
      if (i < rotates) {
        cos[e] = float(cosines[angles.cosines + angle_of(args, i)]);
        sin[e] = float(sines[angles.sines + angle_of(args, i)]);
      }
    }
    if (has_rope && has_late_norm) rotate(args, h, rotates, cos, sin, memory, lane);
    if (weighted || has_norm_v) {
      float squares = 0.0f;
#pragma unroll
      for (int e = 0; e < EACH; ++e) squares = metal::fma(h.x[e], h.x[e], squares);
      const float inverse = has_row_norm ? inverse_of_row(args, h.batch, h.token, h.head, q, k, lane)
                                         : metal::rsqrt(metal::simd_sum(squares) / float(columns) + args.eps);
#pragma unroll
      for (int e = 0; e < EACH; ++e)
        h.x[e] = weighted ? float(T(Kind::template apply<T>(h.x[e] * inverse, weight[e]))) : h.x[e] * inverse;
    }
    if (has_rope && !has_late_norm) rotate(args, h, rotates, cos, sin, memory, lane);
#pragma unroll
    for (int e = 0; e < EACH; ++e) h.x[e] = float(T(h.x[e]));
  }

  // Each element with its partner, which another lane may have. Rounds to T what a norm follows.
  template <int EACH, bool FULL>
  static METAL_FUNC void rotate(constant RopeKvArgs& args, thread Head<EACH, FULL>& h, uint rotates,
                                thread const float (&cos)[EACH], thread const float (&sin)[EACH],
                                threadgroup float* memory, uint lane) {
#pragma unroll
    for (int e = 0; e < EACH; ++e) memory[lane * EACH + e] = h.x[e];
    simdgroup_barrier(metal::mem_flags::mem_threadgroup);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
      const uint i = lane * EACH + e, half_way = rotates / 2;
      const bool first = args.interleaved ? i % 2 == 0 : i < half_way;
      if (i < rotates) {
        const float other = memory[args.interleaved ? i ^ 1u : first ? i + half_way : i - half_way];
        const float across = other * sin[e];
        h.x[e] = first ? h.x[e] * cos[e] - across : h.x[e] * cos[e] + across;
      }
      if (has_late_norm) h.x[e] = float(T(h.x[e]));
    }
    simdgroup_barrier(metal::mem_flags::mem_threadgroup); // the memory may be written again
  }
};

} // namespace foundry
