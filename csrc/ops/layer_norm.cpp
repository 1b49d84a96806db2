#include "core/op.h"
#include "ops/layout.h"
#include "ops/options.h"
#include "norm/layer_norm.h"

namespace foundry {
namespace {

at::Tensor layer_norm(const at::Tensor& x, const OptionalTensor& weight, const OptionalTensor& bias, double eps,
                      double offset) {
  Dim H("hidden");
  check("x", x).floating().last(H).last_dim_contiguous();
  if (weight) check("weight", *weight).shape({H}).contiguous().like(x);
  if (bias) check("bias", *bias).shape({H}).contiguous().like(x);
  LayerNormArgs args{};
  args.eps = epsilon(eps);
  args.offset = finite("offset", offset);
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;

  args.hidden = u32(x.size(-1));
  args.x = rows_of("x", x);
  const bool aligned =
      args.hidden % 8 == 0 && aligned_rows(x) && (!weight || aligned_rows(*weight)) && (!bias || aligned_rows(*bias));
  const uint32_t simdgroups = ceil_div(args.hidden, layer_norm_per_thread * simd_width);
  const KernelKey key("layer_norm.metal", "layer_norm", {x.scalar_type(), aligned ? 8 : 1},
                      {{FC_LAYER_NORM_WEIGHT, weight.has_value()}, {FC_LAYER_NORM_BIAS, bias.has_value()}});
  Launch launch(x.device(), key);
  launch.in(x).in(weight).in(bias).out(y).args(args);
  launch.run(per_row(row_count(x), simd_width * std::min(simdgroups, layer_norm_max_threads / simd_width)));
  return y;
}

} // namespace

FOUNDRY_OP("layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps, float offset=0.0) -> Tensor", "layer_norm",
           layer_norm)

} // namespace foundry
