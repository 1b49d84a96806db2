// A mixture of experts for many tokens: shaders/moe/moe_many.metal and moe_matrix.metal.
#include "ops/experts.h"
#include "ops/gemv.h"

namespace foundry {
namespace {

std::tuple<at::Tensor, at::Tensor> moe_group(const at::Tensor& ids, int64_t experts) {
  TORCH_CHECK(experts > 0 && experts <= moe_max_experts, "experts: expected 1 to ", moe_max_experts, ", got ", experts);
  MoeGroupArgs args{};
  args.routed = routed_args(ids, experts);
  const int64_t pairs = ids.numel(), tiles = pairs / linear_bm + std::min(experts, pairs);
  args.pairs = u32(pairs);
  args.tiles = u32(tiles);
  at::Tensor order = at::empty({pairs}, ids.options());
  at::Tensor table = at::empty({tiles, int64_t(moe_tile_fields)}, ids.options());
  if (pairs == 0) return {order, table};
  const int64_t most =
      kThreadgroupBytes / (experts * sizeof(uint32_t)) - 1; // with the sums over all, in threadgroup memory
  const uint32_t simdgroups = u32(std::min<int64_t>({most, 16, ceil_div(pairs, simd_width)}));
  Launch launch(ids.device(), {"moe_many.metal", "moe_group"});
  launch.in(ids).out(order).out(table).args(args);
  launch.tgmem(simdgroups * experts * sizeof(uint32_t)).tgmem(experts * sizeof(uint32_t));
  launch.run(per_row(1, simdgroups * simd_width));
  return {order, table};
}

// Bytes of W that moe_matrix reads at once; 0: it can't read these rows of x and W.
int matrix_width(const at::Tensor& x, const ExpertMatrices& w, const at::Tensor& weight) {
  const QuantFormat& format = w.one.format;
  if (!format.packed() || !has_fragments(x, w.one) || !aligned_rows(x)) return 0;
  const int64_t row = w.one.row_blocks * format.block_bytes, expert = w.expert_blocks * format.block_bytes;
  const int64_t bits = reinterpret_cast<int64_t>(weight.const_data_ptr()) | row | expert | step_bytes(format);
  return bits % 16 == 0 ? 16 : bits % 8 == 0 ? 8 : bits % 4 == 0 || format.block_bytes % 2 ? 4 : 0;
}

at::Tensor moe_linear(const at::Tensor& x, const at::Tensor& order, const at::Tensor& table, const at::Tensor& weight,
                      OptionalName format, const OptionalTensor& bias, OptionalName activation) {
  const ExpertMatrices w("weight", weight, format, x);
  Dim R("rows"), K("in_features", w.one.k), P("pairs"), tiles("tiles");
  check("x", x).floating().shape({R, K}).contiguous();
  check("order", order).dtype({at::kInt}).device(x).shape({P}).contiguous();
  check("tiles", table).dtype({at::kInt}).device(x).shape({tiles, int64_t(moe_tile_fields)}).contiguous();
  TORCH_CHECK(P == 0 || (R > 0 && P % R == 0), "order: expected a multiple of ", R.value(), " pairs, got ", P.value());
  check_output_size(P, w.one.n);
  at::Tensor y = at::empty({P, w.one.n}, x.options());
  if (y.numel() == 0) return y;
  MoeLinearArgs args{};
  args.routed.experts = u32(w.experts);
  args.routed.expert_blocks[0] = u32(w.expert_blocks);
  args.n = u32(w.one.n);
  args.k = u32(K);
  args.row_blocks = u32(w.one.row_blocks);
  args.per_row = u32(P / R);
  args.bias = expert_bias("bias", bias, w, x);
  args.activation = single_activation(activation);
  args.address = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(weight.const_data_ptr()) % 4);
  const bool aligned = K % chunk == 0 && aligned_rows(x) && w.aligned;
  const QuantFormat& of = w.one.format;
  const auto [outputs, steps, split, simdgroups, blocks] = moe_matrix_choice(x.device(), of.index, w.one.n, K);
  const int width = outputs ? matrix_width(x, w, weight) : 0;
  args.split = split;
  const KernelKey by_matrices = {
      "moe_matrix.metal", "moe_matrix", {of.policy, x.scalar_type(), width, outputs, steps, blocks}};
  const KernelKey by_tiles = {"moe_many.metal", "moe_linear", {of.policy, x.scalar_type(), aligned ? 8 : 1}};
  Launch launch(x.device(), width ? by_matrices : by_tiles);
  launch.in(x).in(order).in(table).in(weight).in_or(bias, x).out(y).args(args);
  launch.min_bytes(experts_read(w.experts, P) * w.bytes_of_one + x.nbytes() + y.nbytes() + order.nbytes());
  if (width) {
    launch.tgmem(matrix_tile_bytes(8 * blocks, outputs, steps, split, simdgroups, u32(of.block_size), step_bytes(of)));
    launch.run(per_row(tiles, simdgroups * simd_width, ceil_div(w.one.n, simdgroups / split * outputs),
                       linear_bm / (8 * blocks)));
  } else {
    launch.run(per_row(ceil_div(w.one.n, linear_bn), linear_tile_threads, tiles));
  }
  return y;
}

at::Tensor moe_combine(const at::Tensor& x, const at::Tensor& ids, const at::Tensor& weights, int64_t experts,
                       const OptionalTensor& residual, double scale) {
  MoeCombineArgs args{};
  args.routed = routed_args(ids, experts);
  check_weights(weights, ids, args.routed);
  Dim T("tokens", ids.size(0)), N("features");
  check("x", x).floating().device(ids).shape({ids.numel(), N}).contiguous();
  if (residual) check("residual", *residual).like(x).shape({T, N}).contiguous();
  args.scale = finite("scale", scale);
  at::Tensor y = at::empty({T.value(), N.value()}, x.options());
  if (y.numel() == 0) return y;
  args.n = u32(N);
  args.has_residual = residual.has_value();
  Launch launch(x.device(), {"moe_many.metal", "moe_combine", {x.scalar_type()}});
  launch.in(x).in(ids).in(weights).in_or(residual, x).out(y).args(args).run(per_element(y.numel()));
  return y;
}

} // namespace

FOUNDRY_OP("moe_group(Tensor ids, int experts) -> (Tensor, Tensor)", "moe_group", moe_group)
FOUNDRY_OP("moe_linear(Tensor x, Tensor order, Tensor tiles, Tensor weight, str? format=None, Tensor? bias=None, "
           "str? activation=None) -> Tensor",
           "moe_linear", moe_linear)
FOUNDRY_OP("moe_combine(Tensor x, Tensor ids, Tensor weights, int experts, Tensor? residual=None, float scale=1.0) -> "
           "Tensor",
           "moe_combine", moe_combine)

} // namespace foundry
