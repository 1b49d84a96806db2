#include "core/op.h"
#include "ops/layout.h"
#include "ops/options.h"
#include "norm/rms_norm.h"

namespace foundry {
namespace {

Grid grid(const at::Tensor& x) {
  const uint32_t per_thread = x.size(-1) < rms_norm_long ? rms_norm_per_thread : rms_norm_per_thread_long;
  const uint32_t simdgroups = ceil_div(x.size(-1), per_thread * simd_width);
  return per_row(row_count(x), simd_width * std::min(simdgroups, rms_norm_max_threads / simd_width));
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, std::string_view kind,
                    const OptionalTensor& residual, const OptionalTensor& scale) {
  Dim H("hidden");
  const Norm norm(kind, eps);
  check("x", x).floating().last(H).last_dim_contiguous();
  check("weight", weight).shape({H}).contiguous().like(x);
  if (residual) {
    check("residual", *residual).like(x);
    check_same_shape("residual", *residual, "x", x);
    check("residual", *residual).last_dim_contiguous();
  }
  if (scale) check("scale", *scale).like(x).shape({1});
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;

  RmsNormArgs args{};
  args.hidden = u32(x.size(-1));
  args.eps = norm.eps;
  args.x = rows_of("x", x);
  if (residual) args.residual = rows_of("residual", *residual);
  const bool aligned = args.hidden % 8 == 0 && aligned_rows(x) && aligned_rows(weight);
  const int vector = aligned && (!residual || aligned_rows(*residual)) ? 8 : 1;
  Launch launch(x.device(), {"rms_norm.metal",
                             "rms_norm",
                             {x.scalar_type(), norm.kind.policy, vector},
                             {{FC_RMS_NORM_RESIDUAL, residual.has_value()}, {FC_RMS_NORM_SCALE, scale.has_value()}}});
  launch.in(x).in(weight).in(residual).in(scale).out(y).args(args).run(grid(x));
  return y;
}

} // namespace

FOUNDRY_OP("rms_norm(Tensor x, Tensor weight, float eps, str kind=\"llama\", Tensor? residual=None, "
           "Tensor? scale=None) -> Tensor",
           "rms_norm", rms_norm)

} // namespace foundry
