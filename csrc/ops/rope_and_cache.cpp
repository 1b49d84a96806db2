#include "rope_and_cache.h"
#include "core/op.h"
#include "ops/layout.h"

namespace foundry {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

uint32_t u32(int64_t value) { return static_cast<uint32_t>(value); }

// Heads in x[batch, tokens, heads * dim].
int64_t heads_in(const char* name, const at::Tensor& x, int64_t dim) {
  TORCH_CHECK(x.size(2) % dim == 0, name, ": expected a last dimension of a multiple of head_dim=", dim, ", got ",
              x.sizes());
  return x.size(2) / dim;
}

// cos or sin: [batch or 1, tokens, rotary], x's dtype or float32.
void check_table(const char* name, const at::Tensor& table, const at::Tensor& q, Dim& rotary) {
  Dim L("tokens", q.size(1));
  check(name, table).dim(3).device(q).dtype({at::kFloat, q.scalar_type()}).last_dim_contiguous();
  TORCH_CHECK(table.size(0) == q.size(0) || table.size(0) == 1, name, ": expected a batch of ", q.size(0),
              " or 1, got ", table.sizes());
  check(name, table).shape({table.size(0), L, rotary});
}

at::Tensor rope_and_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const OptionalTensor& cos,
                          const OptionalTensor& sin, const at::Tensor& k_cache, const at::Tensor& v_cache,
                          int64_t start, int64_t head_dim) {
  TORCH_CHECK(head_dim > 0 && head_dim % 2 == 0, "head_dim: expected a positive even number, got ", head_dim);
  TORCH_CHECK(cos.has_value() == sin.has_value(), "sin: expected both cos and sin, or neither");
  Dim B("batch"), L("tokens"), Q("heads*head_dim"), K("kv_heads*head_dim"), V("kv_heads*value_dim"),
      D("head_dim", head_dim);
  check("q", q).floating().shape({B, L, Q}).last_dim_contiguous();
  check("k", k).like(q).shape({B, L, K}).last_dim_contiguous();
  check("v", v).like(q).shape({B, L, V}).last_dim_contiguous();
  const int64_t n_heads = heads_in("q", q, head_dim), n_kv_heads = heads_in("k", k, head_dim);
  Dim H("kv_heads", n_kv_heads), C("capacity"), VC("capacity"), VD("value_dim");
  check("k_cache", k_cache).like(q).shape({B, H, C, D}).last_dim_contiguous().disjoint("k", k).disjoint("q", q);
  check("v_cache", v_cache).like(q).shape({B, H, VC, VD}).last_dim_contiguous().disjoint("v", v);
  check("v_cache", v_cache).disjoint("k_cache", k_cache);
  check_writable("k_cache", k_cache);
  check_writable("v_cache", v_cache);
  TORCH_CHECK(V.value() == n_kv_heads * VD.value() && VD.value() % 2 == 0,
              "v: expected kv_heads * value_dim = ", n_kv_heads, " * ", VD.value(), ", value_dim even, got ",
              v.sizes());
  TORCH_CHECK(start >= 0 && start + L.value() <= std::min(C.value(), VC.value()), "start: expected start + ", L.value(),
              " tokens to fit into the capacity of ", std::min(C.value(), VC.value()), ", got ", start);
  Dim R("rotary_dim");
  if (cos) {
    check_table("cos", *cos, q, R);
    check_table("sin", *sin, q, R);
    TORCH_CHECK(sin->scalar_type() == cos->scalar_type(), "sin: expected dtype ", cos->scalar_type(), ", got ",
                sin->scalar_type());
    TORCH_CHECK(R.value() % 2 == 0 && R.value() <= head_dim,
                "cos: expected an even last dimension of at most head_dim=", head_dim, ", got ", cos->sizes());
  }
  at::Tensor q_out = at::empty({B, n_heads, L, head_dim}, q.options());
  if (q.numel() == 0 && k.numel() == 0 && v.numel() == 0) return q_out;

  RopeAndCacheArgs args{};
  args.q_len = u32(L);
  args.n_heads = u32(n_heads);
  args.n_kv_heads = u32(n_kv_heads);
  args.head_dim = u32(head_dim);
  args.value_dim = u32(VD);
  args.rotary_dim = cos ? u32(R) : 0;
  args.start = u32(start);
  args.q_batch = u32(q.stride(0)), args.q_token = u32(q.stride(1));
  args.k_batch = u32(k.stride(0)), args.k_token = u32(k.stride(1));
  args.v_batch = u32(v.stride(0)), args.v_token = u32(v.stride(1));
  if (cos) {
    args.cos_batch = stride_of(*cos, 0), args.cos_token = u32(cos->stride(1));
    args.sin_batch = stride_of(*sin, 0), args.sin_token = u32(sin->stride(1));
  }
  args.k_cache_batch = u32(k_cache.stride(0)), args.k_cache_head = u32(k_cache.stride(1));
  args.k_cache_token = u32(k_cache.stride(2));
  args.v_cache_batch = u32(v_cache.stride(0)), args.v_cache_head = u32(v_cache.stride(1));
  args.v_cache_token = u32(v_cache.stride(2));

  const auto fits = [](const at::Tensor& x, int64_t dim) { return dim % 16 == 0 && aligned_rows(x); };
  const bool aligned = fits(q, head_dim) && fits(k, head_dim) && fits(v, VD) && fits(k_cache, head_dim) &&
                       fits(v_cache, VD) && (!cos || (fits(*cos, R) && fits(*sin, R)));
  args.units = u32(std::max<int64_t>(head_dim, VD) / (aligned ? 16 : 2));
  const bool float_table = cos && cos->scalar_type() == at::kFloat;
  static PipelineTable<24> table;
  const int variant = ((dtype_index(q.scalar_type()) * 2 + float_table) * 2 + aligned) * 2 + cos.has_value();
  Pipeline& pipeline = table.get(q.device(), variant, [&] {
    const char* type = metal_type(q.scalar_type());
    return Kernel{"rope_and_cache.metal",
                  "rope_and_cache",
                  {type, float_table ? "float" : type, aligned ? "8" : "1"},
                  {{FC_ROPE_ROTATE, cos.has_value()}},
                  ""};
  });
  const int64_t written = L.value() * (head_dim + VD.value()) * B.value() * n_kv_heads;
  Launch launch(pipeline);
  launch.in(q).in(k).in(v);
  cos ? launch.in(*cos).in(*sin) : launch.none().none();
  launch.inout(k_cache).inout(v_cache).out(q_out).args(args).moves((2 * q.numel() + 2 * written) * q.itemsize());
  launch.run(per_element(args.units * (n_heads + 2 * n_kv_heads) * B.value() * L.value()));
  return q_out;
}

} // namespace

FOUNDRY_OP("rope_and_cache(Tensor q, Tensor k, Tensor v, Tensor? cos, Tensor? sin, Tensor(a!) k_cache, "
           "Tensor(b!) v_cache, SymInt start, SymInt head_dim) -> Tensor",
           "rope_and_cache", rope_and_cache)

} // namespace foundry
