#include "attention/rope_kv.h"

#include "core/op.h"
#include "ops/heads.h"

namespace foundry {
namespace {

int each_of(const RopeKvArgs& args) { return head_elements(std::max(args.head_dim, args.value_dim)); }

// A kernel is chosen by the dtypes and the way in which heads are handled: vectors, single pairs, or with norms.
KernelKey dense_kernel(const NewHeads& heads, const HeadsTo& to, bool aligned) {
  const auto dtype = heads.q.scalar_type();
  KernelKey key{"rope_kv_dense.metal",
                heads.norm ? "norm_rope_kv_dense" : "rope_kv_dense",
                {dtype, to.table_type(dtype)},
                {{FC_ROPE_ROTATE, to.cos.has_value()},
                 {FC_ROPE_NORM_V, heads.norm_values},
                 {FC_ROPE_NORM_ROWS, heads.norm_rows},
                 {FC_ROPE_NORM_LATE, heads.norm_late}}};
  return heads.norm ? key.add({heads.kind(), each_of(heads.args)}) : key.add({aligned ? 8 : 1});
}

// The same for caches of every kind.
KernelKey kernel(const NewHeads& heads, const HeadsTo& to) {
  const auto dtype = heads.q.scalar_type();
  const KvStore keys = kv_store("k_cache", to.k_cache, to.k_format);
  const KvStore values = kv_store("v_cache", to.v_cache, to.v_format);
  return {"rope_kv.metal",
          "rope_kv",
          {dtype, to.table_type(dtype), heads.kind(), keys.format.writer, values.format.writer, each_of(heads.args)},
          {{FC_ROPE_ROTATE, to.cos.has_value()},
           {FC_ROPE_NORM, heads.norm.has_value()},
           {FC_ROPE_PAGED, to.table.has_value()},
           {FC_ROPE_NORM_V, heads.norm_values},
           {FC_ROPE_NORM_ROWS, heads.norm_rows},
           {FC_ROPE_NORM_LATE, heads.norm_late}}};
}

at::Tensor rope_kv(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const OptionalTensor& cos,
                   const OptionalTensor& sin, const at::Tensor& k_cache, const at::Tensor& v_cache, int64_t start,
                   int64_t head_dim, const OptionalTensor& positions, const OptionalTensor& step,
                   const OptionalTensor& q_norm, const OptionalTensor& k_norm, double eps, std::string_view kind,
                   const OptionalTensor& rows, const OptionalTensor& block_table, OptionalName k_format,
                   OptionalName v_format, bool v_norm, bool interleaved, bool rotate_first, bool deinterleave,
                   bool gated) {
  const HeadsTo to{cos,  sin,         positions, k_cache,  v_cache,     start,       step,
                   rows, block_table, k_format,  v_format, interleaved, deinterleave};
  const NewHeads heads(q, k, v, to, {head_dim, q_norm, k_norm, eps, kind, v_norm, rotate_first, gated});
  const at::Tensor q_out = heads.empty_queries();
  rope_and_write(heads, to, q_out);
  return q_out;
}

} // namespace

at::Tensor NewHeads::empty_queries() const {
  return at::empty({q.size(0), args.n_heads, q.size(1), args.head_dim}, q.options());
}

void rope_and_write(const NewHeads& heads, const HeadsTo& to, const at::Tensor& q_out) {
  const at::Tensor &q = heads.q, &k = heads.k, &v = heads.v;
  RopeKvArgs args = heads.args;
  const bool plain = plain_caches(q, to);
  if (!plain || heads.norm) { // a head lies in threadgroup memory
    const int64_t most = norm_rope_max_head_dim, largest = std::max<int64_t>(args.head_dim, args.value_dim);
    TORCH_CHECK(largest <= most, "head_dim: expected at most ", most, " with norms, pages, rows or caches of another ",
                "kind, got ", largest);
  }
  if (q.numel() == 0 && k.numel() == 0 && v.numel() == 0) return;

  const int64_t all = int64_t(args.rows) * (args.n_heads + 2 * args.n_kv_heads);
  const int64_t read = q_out.nbytes() + k.nbytes() + v.nbytes(), stored = k.nbytes() + v.nbytes();
  if (!plain) {
    Launch launch(q.device(), kernel(heads, to));
    launch.in(q).in(heads.new_k()).in(heads.new_v());
    to.bind(launch, q);
    launch.out(q_out).args(args).in(heads.q_norm).in(heads.k_norm).in_or(to.rows, q).in_or(to.table, q);
    launch.min_bytes(read + 2 * q_out.nbytes());
    launch.run(simdgroup_per_row(all, rope_store_simdgroups));
    return;
  }
  const auto fits = [](const at::Tensor& x, int64_t dim) { return dim % 16 == 0 && aligned_rows(x); };
  const bool aligned = fits(q, args.head_dim) && fits(k, args.head_dim) && fits(v, args.value_dim) &&
                       fits(to.k_cache, args.head_dim) && fits(to.v_cache, args.value_dim) &&
                       (!to.cos || (fits(*to.cos, args.rotary_dim) && fits(*to.sin, args.rotary_dim)));
  args.units = std::max(args.head_dim, args.value_dim) / (aligned ? 16 : 2);
  Launch launch(q.device(), dense_kernel(heads, to, aligned));
  launch.in(q).in(heads.new_k()).in(heads.new_v());
  to.bind(launch, q);
  launch.out(q_out).args(args).min_bytes(read + q_out.nbytes() + stored);
  if (heads.norm) {
    launch.in(heads.q_norm).in(heads.k_norm);
    launch.run(simdgroup_per_row(all, rope_store_simdgroups));
  } else {
    launch.run(per_element(args.units * all));
  }
}

FOUNDRY_OP("rope_kv(Tensor q, Tensor k, Tensor v, Tensor? cos, Tensor? sin, Tensor(a!) k_cache, "
           "Tensor(b!) v_cache, SymInt start, SymInt head_dim, Tensor? positions=None, Tensor? step=None, "
           "Tensor? q_norm=None, Tensor? k_norm=None, float eps=0.0, str kind=\"llama\", Tensor? rows=None, "
           "Tensor? block_table=None, str? k_format=None, str? v_format=None, "
           "bool v_norm=False, bool interleaved=False, bool rotate_first=False, bool deinterleave=False, bool "
           "gated=False) -> Tensor",
           "rope_kv", rope_kv)

} // namespace foundry
