#include "ops/heads.h"

#include <tuple>

#include "core/check.h"
#include "ops/rms_norm.h"

namespace foundry {
namespace {

void check_table(const char* name, const at::Tensor& given, const at::Tensor& like, int64_t batch, int64_t tokens,
                 bool by_position, bool twice, Dim& rotary) {
  check(name, given).device(like).dtype({at::kFloat, like.scalar_type()}).last_dim_contiguous();
  TORCH_CHECK(!twice || (given.size(-2) == 2 && given.stride(-2) == given.size(-1)), name, ": expected ",
              given.dim() - 1, " dimensions, or before the last one the rows of queries and keys, side by side, got ",
              given.sizes());
  const at::Tensor table = twice ? given.select(-2, 0) : given;
  if (by_position) {
    Dim P("positions");
    check(name, table).dim(2).shape({P, rotary});
    return;
  }
  Dim L("tokens", tokens);
  check(name, table).dim(3);
  TORCH_CHECK(table.size(0) == batch || table.size(0) == 1, name, ": expected a batch of ", batch, " or 1, got ",
              table.sizes());
  check(name, table).shape({table.size(0), L, rotary});
}

// Checks caches of any kind; returns how many tokens they have room for, and the values' columns.
std::pair<int64_t, int64_t> check_caches(const at::Tensor& like, int64_t batch, int64_t n_kv_heads, int64_t head_dim,
                                         const HeadsTo& to, RopeKvArgs& args) {
  const auto check = [&](const char* name, const at::Tensor& x) { return Check(name, x, to.table.has_value()); };
  check("k_cache", to.k_cache).device(like);
  check("v_cache", to.v_cache).device(like);
  const KvStore keys = kv_store("k_cache", to.k_cache, to.k_format);
  const KvStore values = kv_store("v_cache", to.v_cache, to.v_format);
  TORCH_CHECK(keys.columns == head_dim, "k_cache: expected head_dim=", head_dim, ", got ", to.k_cache.sizes());
  Dim B(to.table ? "pages" : "batch", to.table ? -1 : batch), H("kv_heads", n_kv_heads), C("tokens"), VC("tokens");
  check("k_cache", to.k_cache).shape({B, H, C, to.k_cache.size(3)});
  check("v_cache", to.v_cache).shape({B, H, VC, to.v_cache.size(3)});
  kv_aligned("k_cache", to.k_cache, keys);
  kv_aligned("v_cache", to.v_cache, values);
  int64_t capacity = std::min(C.value(), VC.value());
  if (to.table) {
    args.page_shift = u32(check_table(*to.table, like, batch, C));
    check("v_cache", to.v_cache).shape({B, H, C, to.v_cache.size(3)});
    args.table_row = u32(to.table->stride(0));
    args.pages = u32(B);
    capacity = to.table->size(1) * C.value();
  }
  if (to.rows) {
    check("rows", *to.rows).device(like).dtype({at::kInt}).shape({batch, 2}).contiguous();
    TORCH_CHECK(!to.step, "rows: expected step or rows, got both");
    args.has_rows = 1;
  }
  return {capacity, values.columns};
}

// Heads in x[batch, tokens, heads * dim].
int64_t heads_in(const char* name, const at::Tensor& x, int64_t dim) {
  TORCH_CHECK(x.size(2) % dim == 0, name, ": expected a last dimension of a multiple of head_dim=", dim, ", got ",
              x.sizes());
  return x.size(2) / dim;
}

} // namespace

bool plain_caches(const at::Tensor& like, const HeadsTo& to) {
  const auto dtype = like.scalar_type();
  return !to.rows && !to.table && !to.k_format && !to.v_format && to.k_cache.scalar_type() == dtype &&
         to.v_cache.scalar_type() == dtype;
}

void HeadsTo::bind(Launch& launch, const at::Tensor& other) const {
  launch.in(cos).in(sin).in_or(positions, other).in_or(step, other).inout(k_cache).inout(v_cache);
}

RopeKvArgs heads_args(const at::Tensor& like, int64_t batch, int64_t tokens, int64_t n_heads, int64_t n_kv_heads,
                      int64_t head_dim, const HeadsTo& to) {
  TORCH_CHECK(to.cos.has_value() == to.sin.has_value(), "sin: expected both cos and sin, or neither");
  Dim B("batch", batch), L("tokens", tokens), R("rotary_dim");
  RopeKvArgs args{};
  int64_t capacity, value_dim;
  if (plain_caches(like, to)) {
    Dim D("head_dim", head_dim), H("kv_heads", n_kv_heads), C("capacity"), VC("capacity"), VD("value_dim");
    check("k_cache", to.k_cache).like(like).shape({B, H, C, D}).last_dim_contiguous();
    check("v_cache", to.v_cache).like(like).shape({B, H, VC, VD}).last_dim_contiguous();
    capacity = std::min(C.value(), VC.value()), value_dim = VD;
  } else {
    std::tie(capacity, value_dim) = check_caches(like, batch, n_kv_heads, head_dim, to, args);
  }
  check_pages("v_cache", to.v_cache).disjoint("k_cache", to.k_cache);
  check_writable("k_cache", to.k_cache);
  check_writable("v_cache", to.v_cache);
  TORCH_CHECK(to.start >= 0 && to.start <= capacity - tokens, "start: expected start + ", tokens,
              " tokens to fit into the capacity of ", capacity, ", got ", to.start);
  if (to.step) check("step", *to.step).device(like).dtype({at::kInt}).shape({2}).contiguous();
  if (to.positions) check("positions", *to.positions).device(like).dtype({at::kInt}).shape({B, L}).contiguous();
  if (to.cos) {
    const bool by_position = to.positions.has_value(), twice = to.cos->dim() == (by_position ? 3 : 4);
    TORCH_CHECK(to.sin->dim() == to.cos->dim(), "sin: expected the dimensions of cos, ", to.cos->sizes(), ", got ",
                to.sin->sizes());
    check_table("cos", *to.cos, like, batch, tokens, by_position, twice, R);
    check_table("sin", *to.sin, like, batch, tokens, by_position, twice, R);
    args.key_columns = twice ? u32(R) : 0;
    TORCH_CHECK(to.sin->scalar_type() == to.cos->scalar_type(), "sin: expected dtype ", to.cos->scalar_type(), ", got ",
                to.sin->scalar_type());
    TORCH_CHECK(R.value() % 2 == 0 && R.value() <= head_dim,
                "cos: expected an even last dimension of at most head_dim=", head_dim, ", got ", to.cos->sizes());
    TORCH_CHECK(!to.positions || to.sin->size(0) == to.cos->size(0), "sin: expected the rows of cos, ", to.cos->sizes(),
                ", got ", to.sin->sizes());
  }

  args.rows = u32(batch * tokens);
  args.q_len = u32(tokens);
  args.n_heads = u32(n_heads);
  args.n_kv_heads = u32(n_kv_heads);
  args.head_dim = args.q_head = u32(head_dim);
  args.value_dim = u32(value_dim);
  args.rotary_dim = to.cos ? u32(R) : 0;
  args.start = u32(to.step || to.rows ? capacity - tokens : to.start);
  args.has_step = to.step.has_value();
  args.has_positions = to.cos && to.positions;
  args.interleaved = to.interleaved;
  args.deinterleave = to.deinterleave;
  if (to.cos && to.positions) {
    args.table_rows = u32(to.cos->size(0));
    args.cos_token = u32(to.cos->stride(0)), args.sin_token = u32(to.sin->stride(0));
  } else if (to.cos) {
    args.cos_batch = stride_of(*to.cos, 0), args.cos_token = u32(to.cos->stride(1));
    args.sin_batch = stride_of(*to.sin, 0), args.sin_token = u32(to.sin->stride(1));
  }
  args.k_cache_batch = u32(to.k_cache.stride(0)), args.k_cache_head = u32(to.k_cache.stride(1));
  args.k_cache_token = u32(to.k_cache.stride(2));
  args.v_cache_batch = u32(to.v_cache.stride(0)), args.v_cache_head = u32(to.v_cache.stride(1));
  args.v_cache_token = u32(to.v_cache.stride(2));
  return args;
}

NewHeads::NewHeads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const HeadsTo& to,
                   const HeadOptions& options)
    : q(q), k(k), v(v), q_norm(options.q_norm), k_norm(options.k_norm), norm_values(options.v_norm),
      norm_late(options.rotate_first) {
  const int64_t head_dim = options.head_dim;
  TORCH_CHECK(head_dim > 0 && head_dim % 2 == 0, "head_dim: expected a positive even number, got ", head_dim);
  TORCH_CHECK(q_norm.has_value() == k_norm.has_value(), "k_norm: expected both q_norm and k_norm, or neither");
  TORCH_CHECK(q_norm || !norm_values, "v_norm: expected q_norm and k_norm along with it");
  Dim B("batch"), L("tokens"), Q("heads*head_dim"), K("kv_heads*head_dim"), V("kv_heads*value_dim");
  check("q", q).floating().shape({B, L, Q}).last_dim_contiguous();
  check("k", k).like(q).shape({B, L, K}).last_dim_contiguous();
  check("v", v).like(q).shape({B, L, V}).last_dim_contiguous();
  const int64_t q_head = head_dim * (options.gated ? 2 : 1);
  const int64_t n_heads = heads_in("q", q, q_head), n_kv_heads = heads_in("k", k, head_dim);
  args = heads_args(q, B, L, n_heads, n_kv_heads > 0 ? n_kv_heads : to.k_cache.size(1), head_dim, to);
  args.n_kv_heads = u32(n_kv_heads);
  check_pages("k_cache", to.k_cache).disjoint("k", k).disjoint("q", q);
  check_pages("v_cache", to.v_cache).disjoint("v", v);
  TORCH_CHECK(V.value() == n_kv_heads * args.value_dim && args.value_dim % 2 == 0,
              "v: expected kv_heads * value_dim = ", n_kv_heads, " * ", args.value_dim, ", value_dim even, got ",
              v.sizes());
  norm_rows = false;
  if (q_norm) {
    const auto of_row = [&](const at::Tensor& norm, int64_t row) { return norm.numel() == row && row != head_dim; };
    norm_rows = of_row(*q_norm, Q) || of_row(*k_norm, K);
    Dim D("head_dim", head_dim);
    check("q_norm", *q_norm).like(q).shape({norm_rows ? Q : D}).contiguous();
    check("k_norm", *k_norm).like(q).shape({norm_rows ? K : D}).contiguous();
    args.eps = norm.emplace(options.kind, options.eps).eps;
    args.q_row = {rms_norm_threads(Q), u32(rms_norm_vector(q, *q_norm))};
    args.k_row = {rms_norm_threads(K), u32(rms_norm_vector(k, *k_norm))};
  }
  TORCH_CHECK(norm || !norm_late, "rotate_first: expected q_norm and k_norm, which come after the rotation");
  TORCH_CHECK(!norm_rows || !(norm_late || norm_values || options.gated),
              norm_late     ? "rotate_first"
              : norm_values ? "v_norm"
                            : "gated",
              ": expected q_norm and k_norm of head_dim=", head_dim, ", got those of all heads");
  TORCH_CHECK(!to.deinterleave || (to.interleaved && !norm), "deinterleave: expected interleaved heads without norms");
  args.q_head = u32(q_head);
  args.q_batch = u32(q.stride(0)), args.q_token = u32(q.stride(1));
  args.k_batch = u32(k.stride(0)), args.k_token = u32(k.stride(1));
  args.v_batch = u32(v.stride(0)), args.v_token = u32(v.stride(1));
}

} // namespace foundry
