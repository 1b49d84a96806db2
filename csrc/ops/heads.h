// What ops that rotate heads and write them to a KV cache have in common: shaders/attention/heads.h.
#pragma once

#include "core/launch.h"
#include "ops/kv.h"
#include "ops/layout.h"
#include "ops/options.h"
#include "attention/rope_kv.h"

namespace foundry {

// cos, sin: [batch or 1, tokens, rotary]; with positions (int32 [batch, tokens]) tables [rows, rotary]; or [.., 2,
// rotary], of queries and of keys. Neither: heads don't rotate. step (int32 [2]): its first element takes the place of
// start, which then is a bound.
struct HeadsTo {
  const OptionalTensor &cos, &sin, &positions;
  const at::Tensor &k_cache, &v_cache;
  int64_t start;
  const OptionalTensor& step;
  // Caches of other kinds (rope_kv.metal): rows int32 [batch, 2], table int32 [batch, pages], packed formats.
  OptionalTensor rows = std::nullopt, table = std::nullopt;
  OptionalName k_format = std::nullopt, v_format = std::nullopt;
  bool interleaved = false, deinterleave = false;

  at::ScalarType table_type(at::ScalarType dtype) const { return cos ? cos->scalar_type() : dtype; }

  // Binds cos, sin, positions, step and the caches, in that order; `other` stands in for what is absent and not read.
  void bind(Launch& launch, const at::Tensor& other) const;
};

// Checks all of them against q [batch, tokens, n_heads * head_dim] of `like`'s dtype and device; the sizes and strides
// of tables and caches. value_dim: of v_cache.
RopeKvArgs heads_args(const at::Tensor& like, int64_t batch, int64_t tokens, int64_t n_heads, int64_t n_kv_heads,
                      int64_t head_dim, const HeadsTo& to);

// What becomes of heads beside their rotation. gated: behind each head of q is one of gates, which is left alone.
struct HeadOptions {
  int64_t head_dim;
  const OptionalTensor &q_norm, &k_norm; // [head_dim], or of all heads at once
  double eps;
  std::string_view kind;
  bool v_norm, rotate_first, gated;
};

// Checked projections of new tokens: q, k and v [batch, tokens, heads * columns].
struct NewHeads {
  const at::Tensor &q, &k, &v;
  const OptionalTensor &q_norm, &k_norm;
  RopeKvArgs args;
  std::optional<Norm> norm;
  bool norm_rows, norm_values, norm_late;

  NewHeads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const HeadsTo& to,
           const HeadOptions& options);

  bool stores() const { return args.n_kv_heads > 0; } // or only the queries are wanted: keys are another layer's
  const at::Tensor& new_k() const { return stores() ? k : q; }
  const at::Tensor& new_v() const { return stores() ? v : q; }
  const char* kind() const { return norm ? norm->kind.policy : kNormKinds[0].policy; }
  at::Tensor empty_queries() const; // [batch, heads, tokens, head_dim]
};

// Rotates heads and writes keys and values to the caches, and queries to `q_out`.
void rope_and_write(const NewHeads& heads, const HeadsTo& to, const at::Tensor& q_out);

// Whether the caches are dense, of `like`'s dtype, contiguous and filled alike: what the plain kernels write to.
bool plain_caches(const at::Tensor& like, const HeadsTo& to);

} // namespace foundry
