// Norms of q and k that are of all heads at once. Each head's simdgroup adds up its whole row, in the order in which
// rms_norm.metal does, so that the bits are those of norms in launches of their own.
#pragma once
#include "attention/rope_constants.h"
#include "common/vec.h"

namespace foundry {

// Simdgroups of rms_norm.metal whose sums are made side by side, for loads that don't wait for each other.
constant constexpr int sums_together = 4;

template <int VEC, typename T> METAL_FUNC float squares_of_row(device const T* x, uint width, uint threads, uint lane) {
  float sum = 0.0f;
  for (uint first = 0; first < threads; first += sums_together * simd_width) {
    float own[sums_together] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (uint from = (first + lane) * VEC; from < width; from += threads * VEC) {
#pragma unroll
      for (int n = 0; n < sums_together; ++n) {
        const uint after = n * simd_width, i = from + after * VEC;
        if (first + after < threads && i < width) {
          float v[VEC];
          load(x + i, v);
          for (int j = 0; j < VEC; ++j) own[n] = metal::fma(v[j], v[j], own[n]);
        }
      }
    }
    for (int n = 0; n < sums_together; ++n) sum += metal::simd_sum(own[n]);
  }
  return sum;
}

// What a head's elements are multiplied by: 1 / the root of the mean square of its row of q or k; of values, which have
// no such norm, nothing that is used. All lanes of the head's simdgroup must call this.
template <typename T>
METAL_FUNC float inverse_of_row(constant RopeKvArgs& args, uint batch, uint token, uint head, device const T* q,
                                device const T* k, uint lane) {
  const bool query = head < args.n_heads;
  device const T* row =
      query ? q + batch * args.q_batch + token * args.q_token : k + batch * args.k_batch + token * args.k_token;
  const uint width = (query ? args.n_heads : args.n_kv_heads) * args.head_dim;
  const uint threads = is_value(args, head) ? 0 : query ? args.q_row.threads : args.k_row.threads;
  const bool by_vectors = (query ? args.q_row.vector : args.k_row.vector) == 8;
  const float squares =
      by_vectors ? squares_of_row<8>(row, width, threads, lane) : squares_of_row<1>(row, width, threads, lane);
  return metal::rsqrt(squares / float(width) + args.eps);
}

// The weights of the norm that a head of q or k passes.
template <typename T>
METAL_FUNC device const T* norm_of(constant RopeKvArgs& args, uint head, device const T* q_norm,
                                   device const T* k_norm) {
  const uint own = head < args.n_heads ? head : head - args.n_heads;
  return (head < args.n_heads ? q_norm : k_norm) + (has_row_norm ? own * args.head_dim : 0);
}

} // namespace foundry
