#include "attention/rope_kv.h"

#include "core/op.h"
#include "ops/heads.h"
#include "ops/rms_norm.h"

namespace foundry {
namespace {

// Heads in x[batch, tokens, heads * dim].
int64_t heads_in(const char* name, const at::Tensor& x, int64_t dim) {
  TORCH_CHECK(x.size(2) % dim == 0, name, ": expected a last dimension of a multiple of head_dim=", dim, ", got ",
              x.sizes());
  return x.size(2) / dim;
}

// The norm of q and k heads, or of all of them at once, and whether v heads pass one.
struct HeadNorms {
  std::optional<Norm> norm;
  bool of_rows = false, of_values = false;
};

// A kernel is chosen by the dtypes and the way in which heads are handled: vectors, single pairs, or with norms.
KernelKey dense_kernel(at::ScalarType dtype, const HeadsTo& to, bool aligned, const HeadNorms& norms) {
  const KernelArgument last = norms.norm ? KernelArgument(norms.norm->kind.policy) : aligned ? 8 : 1;
  return {
      "rope_kv_dense.metal",
      norms.norm ? "norm_rope_kv_dense" : "rope_kv_dense",
      {dtype, to.table_type(dtype), last},
      {{FC_ROPE_ROTATE, to.cos.has_value()}, {FC_ROPE_NORM_V, norms.of_values}, {FC_ROPE_NORM_ROWS, norms.of_rows}}};
}

// The same for caches of every kind.
KernelKey kernel(at::ScalarType dtype, const HeadsTo& to, const HeadNorms& norms) {
  const KvStore keys = kv_store("k_cache", to.k_cache, to.k_format);
  const KvStore values = kv_store("v_cache", to.v_cache, to.v_format);
  const char* policy = norms.norm ? norms.norm->kind.policy : kNormKinds[0].policy;
  return {"rope_kv.metal",
          "rope_kv",
          {dtype, to.table_type(dtype), policy, keys.format.writer, values.format.writer},
          {{FC_ROPE_ROTATE, to.cos.has_value()},
           {FC_ROPE_NORM, norms.norm.has_value()},
           {FC_ROPE_PAGED, to.table.has_value()},
           {FC_ROPE_NORM_V, norms.of_values},
           {FC_ROPE_NORM_ROWS, norms.of_rows}}};
}

at::Tensor rope_kv(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const OptionalTensor& cos,
                   const OptionalTensor& sin, const at::Tensor& k_cache, const at::Tensor& v_cache, int64_t start,
                   int64_t head_dim, const OptionalTensor& positions, const OptionalTensor& step,
                   const OptionalTensor& q_norm, const OptionalTensor& k_norm, double eps, std::string_view kind,
                   const OptionalTensor& rows, const OptionalTensor& block_table, OptionalName k_format,
                   OptionalName v_format, bool v_norm, bool interleaved, bool rotate_first, bool deinterleave) {
  TORCH_CHECK(head_dim > 0 && head_dim % 2 == 0, "head_dim: expected a positive even number, got ", head_dim);
  TORCH_CHECK(q_norm.has_value() == k_norm.has_value(), "k_norm: expected both q_norm and k_norm, or neither");
  TORCH_CHECK(q_norm || !v_norm, "v_norm: expected q_norm and k_norm along with it");
  Dim B("batch"), L("tokens"), Q("heads*head_dim"), K("kv_heads*head_dim"), V("kv_heads*value_dim");
  check("q", q).floating().shape({B, L, Q}).last_dim_contiguous();
  check("k", k).like(q).shape({B, L, K}).last_dim_contiguous();
  check("v", v).like(q).shape({B, L, V}).last_dim_contiguous();
  const int64_t n_heads = heads_in("q", q, head_dim), n_kv_heads = heads_in("k", k, head_dim);
  const HeadsTo to{cos,  sin,         positions, k_cache,  v_cache,     start,       step,
                   rows, block_table, k_format,  v_format, interleaved, deinterleave};
  const bool stores = n_kv_heads > 0; // or only the queries are wanted: of layers that attend to others' keys
  RopeKvArgs args = heads_args(q, B, L, n_heads, stores ? n_kv_heads : k_cache.size(1), head_dim, to);
  args.n_kv_heads = u32(n_kv_heads);
  check_pages("k_cache", k_cache).disjoint("k", k).disjoint("q", q);
  check_pages("v_cache", v_cache).disjoint("v", v);
  TORCH_CHECK(V.value() == n_kv_heads * args.value_dim && args.value_dim % 2 == 0,
              "v: expected kv_heads * value_dim = ", n_kv_heads, " * ", args.value_dim, ", value_dim even, got ",
              v.sizes());
  HeadNorms norms{std::nullopt, false, v_norm};
  if (q_norm) {
    const auto of_row = [&](const at::Tensor& norm, int64_t row) { return norm.numel() == row && row != head_dim; };
    norms.of_rows = of_row(*q_norm, Q) || of_row(*k_norm, K);
    Dim D("head_dim", head_dim);
    check("q_norm", *q_norm).like(q).shape({norms.of_rows ? Q : D}).contiguous();
    check("k_norm", *k_norm).like(q).shape({norms.of_rows ? K : D}).contiguous();
    args.eps = norms.norm.emplace(kind, eps).eps;
    args.q_row = {rms_norm_threads(Q), u32(rms_norm_vector(q, *q_norm))};
    args.k_row = {rms_norm_threads(K), u32(rms_norm_vector(k, *k_norm))};
  }
  TORCH_CHECK(norms.norm || !rotate_first, "rotate_first: expected q_norm and k_norm, which come after the rotation");
  TORCH_CHECK(!norms.of_rows || !(rotate_first || v_norm), rotate_first ? "rotate_first" : "v_norm",
              ": expected q_norm and k_norm of head_dim=", head_dim, ", got those of all heads");
  args.rotate_first = rotate_first;
  TORCH_CHECK(!deinterleave || (interleaved && !norms.norm), "deinterleave: expected interleaved heads without norms");
  const bool plain = plain_caches(q, to);
  if (!plain || q_norm) { // a head lies in threadgroup memory
    const int64_t most = norm_rope_max_head_dim, largest = std::max<int64_t>(head_dim, args.value_dim);
    TORCH_CHECK(largest <= most, "head_dim: expected at most ", most, " with norms, pages, rows or caches of another ",
                "kind, got ", largest);
  }
  at::Tensor q_out = at::empty({B, n_heads, L, head_dim}, q.options());
  if (q.numel() == 0 && k.numel() == 0 && v.numel() == 0) return q_out;

  args.q_batch = u32(q.stride(0)), args.q_token = u32(q.stride(1));
  args.k_batch = u32(k.stride(0)), args.k_token = u32(k.stride(1));
  args.v_batch = u32(v.stride(0)), args.v_token = u32(v.stride(1));
  const int64_t heads = B.value() * L.value() * (n_heads + 2 * n_kv_heads);
  if (!plain) {
    Launch launch(q.device(), kernel(q.scalar_type(), to, norms));
    launch.in(q).in(stores ? k : q).in(stores ? v : q);
    to.bind(launch, q);
    launch.out(q_out).args(args).in(q_norm).in(k_norm).in_or(rows, q).in_or(block_table, q);
    launch.min_bytes(3 * q.nbytes() + k.nbytes() + v.nbytes());
    launch.run(simdgroup_per_row(heads, rope_store_simdgroups));
    return q_out;
  }
  const auto fits = [](const at::Tensor& x, int64_t dim) { return dim % 16 == 0 && aligned_rows(x); };
  const bool aligned = fits(q, head_dim) && fits(k, head_dim) && fits(v, args.value_dim) && fits(k_cache, head_dim) &&
                       fits(v_cache, args.value_dim) &&
                       (!cos || (fits(*cos, args.rotary_dim) && fits(*sin, args.rotary_dim)));
  args.units = std::max(args.head_dim, args.value_dim) / (aligned ? 16 : 2);
  Launch launch(q.device(), dense_kernel(q.scalar_type(), to, aligned, norms));
  launch.in(q).in(stores ? k : q).in(stores ? v : q);
  to.bind(launch, q);
  const int64_t written = B.value() * L.value() * n_kv_heads * (head_dim + args.value_dim);
  launch.out(q_out).args(args).min_bytes((2 * q.numel() + 2 * written) * q.itemsize());
  if (q_norm) {
    launch.in(*q_norm).in(*k_norm);
    launch.run(simdgroup_per_row(heads, 4));
  } else {
    launch.run(per_element(args.units * heads));
  }
  return q_out;
}

} // namespace

FOUNDRY_OP("rope_kv(Tensor q, Tensor k, Tensor v, Tensor? cos, Tensor? sin, Tensor(a!) k_cache, "
           "Tensor(b!) v_cache, SymInt start, SymInt head_dim, Tensor? positions=None, Tensor? step=None, "
           "Tensor? q_norm=None, Tensor? k_norm=None, float eps=0.0, str kind=\"llama\", Tensor? rows=None, "
           "Tensor? block_table=None, str? k_format=None, str? v_format=None, "
           "bool v_norm=False, bool interleaved=False, bool rotate_first=False, bool deinterleave=False) -> Tensor",
           "rope_kv", rope_kv)

} // namespace foundry
