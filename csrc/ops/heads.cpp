#include "ops/heads.h"

#include "core/check.h"

namespace foundry {
namespace {

uint32_t u32(int64_t value) { return static_cast<uint32_t>(value); }

void check_table(const char* name, const at::Tensor& table, const at::Tensor& like, int64_t batch, int64_t tokens,
                 bool by_position, Dim& rotary) {
  check(name, table).device(like).dtype({at::kFloat, like.scalar_type()}).last_dim_contiguous();
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

} // namespace

void HeadsTo::bind(Launch& launch, const at::Tensor& other) const {
  cos ? launch.in(*cos).in(*sin) : launch.none().none();
  launch.in(positions ? *positions : other).in(step ? *step : other).inout(k_cache).inout(v_cache);
}

RopeAndCacheArgs heads_args(const at::Tensor& like, int64_t batch, int64_t tokens, int64_t n_heads, int64_t n_kv_heads,
                            int64_t head_dim, const HeadsTo& to) {
  TORCH_CHECK(to.cos.has_value() == to.sin.has_value(), "sin: expected both cos and sin, or neither");
  Dim B("batch", batch), L("tokens", tokens), D("head_dim", head_dim), H("kv_heads", n_kv_heads), C("capacity"),
      VC("capacity"), VD("value_dim"), R("rotary_dim");
  check("k_cache", to.k_cache).like(like).shape({B, H, C, D}).last_dim_contiguous();
  check("v_cache", to.v_cache).like(like).shape({B, H, VC, VD}).last_dim_contiguous().disjoint("k_cache", to.k_cache);
  check_writable("k_cache", to.k_cache);
  check_writable("v_cache", to.v_cache);
  const int64_t capacity = std::min(C.value(), VC.value());
  TORCH_CHECK(to.start >= 0 && to.start + tokens <= capacity, "start: expected start + ", tokens,
              " tokens to fit into the capacity of ", capacity, ", got ", to.start);
  if (to.step) check("step", *to.step).device(like).dtype({at::kInt}).shape({2}).contiguous();
  if (to.positions) check("positions", *to.positions).device(like).dtype({at::kInt}).shape({B, L}).contiguous();
  if (to.cos) {
    check_table("cos", *to.cos, like, batch, tokens, to.positions.has_value(), R);
    check_table("sin", *to.sin, like, batch, tokens, to.positions.has_value(), R);
    TORCH_CHECK(to.sin->scalar_type() == to.cos->scalar_type(), "sin: expected dtype ", to.cos->scalar_type(), ", got ",
                to.sin->scalar_type());
    TORCH_CHECK(R.value() % 2 == 0 && R.value() <= head_dim,
                "cos: expected an even last dimension of at most head_dim=", head_dim, ", got ", to.cos->sizes());
    TORCH_CHECK(!to.positions || to.sin->size(0) == to.cos->size(0), "sin: expected the rows of cos, ", to.cos->sizes(),
                ", got ", to.sin->sizes());
  }

  RopeAndCacheArgs args{};
  args.rows = u32(batch * tokens);
  args.q_len = u32(tokens);
  args.n_heads = u32(n_heads);
  args.n_kv_heads = u32(n_kv_heads);
  args.head_dim = u32(head_dim);
  args.value_dim = u32(VD);
  args.rotary_dim = to.cos ? u32(R) : 0;
  args.start = u32(to.step ? capacity - tokens : to.start);
  args.has_step = to.step.has_value();
  args.has_positions = to.cos && to.positions;
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

} // namespace foundry
