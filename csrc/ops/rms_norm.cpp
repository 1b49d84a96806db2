#include <tuple>

#include "core/op.h"
#include "ops/layout.h"
#include "ops/options.h"
#include "norm/rms_norm.h"

namespace foundry {
namespace {

void check_operands(const at::Tensor& x, const at::Tensor& weight) {
  Dim H("hidden");
  check("x", x).floating().last(H).last_dim_contiguous();
  check("weight", weight).shape({H}).contiguous().like(x);
}

void check_residual(const at::Tensor& residual, const at::Tensor& x) {
  check("residual", residual).like(x);
  check_same_shape("residual", residual, "x", x);
  check("residual", residual).last_dim_contiguous();
}

Grid grid(const at::Tensor& x) {
  const uint32_t per_thread = x.size(-1) < rms_norm_long ? rms_norm_per_thread : rms_norm_per_thread_long;
  const uint32_t simdgroups = ceil_div(x.size(-1), per_thread * simd_width);
  return per_row(row_count(x), simd_width * std::min(simdgroups, rms_norm_max_threads / simd_width));
}

bool is_aligned(const at::Tensor& x, const at::Tensor& weight) {
  return x.size(-1) % 8 == 0 && aligned_rows(x) && aligned_rows(weight);
}

RmsNormArgs arguments(const at::Tensor& x, const Norm& norm) {
  RmsNormArgs args{};
  args.hidden = u32(x.size(-1));
  args.eps = norm.eps;
  args.x = rows_of("x", x);
  return args;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, std::string_view kind,
                    const OptionalTensor& residual) {
  const Norm norm(kind, eps);
  check_operands(x, weight);
  if (residual) check_residual(*residual, x);
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;

  RmsNormArgs args = arguments(x, norm);
  if (residual) args.residual = rows_of("residual", *residual);
  const bool aligned = is_aligned(x, weight) && (!residual || aligned_rows(*residual));
  Launch launch(x.device(), {"rms_norm.metal",
                             "rms_norm",
                             {x.scalar_type(), norm.kind.policy, aligned ? 8 : 1},
                             {{FC_RMS_NORM_RESIDUAL, residual.has_value()}}});
  launch.in(x).in(weight).in(residual).out(y).args(args).run(grid(x));
  return y;
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& weight, double eps, std::string_view kind,
                                                double scale) {
  const Norm norm(kind, eps);
  check_operands(x, weight);
  check_residual(residual, x);
  at::Tensor y = at::empty(x.sizes(), x.options()), h = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return {y, h};

  RmsNormArgs args = arguments(x, norm);
  args.scale = static_cast<float>(scale);
  args.residual = rows_of("residual", residual);
  const bool aligned = is_aligned(x, weight) && aligned_rows(residual);
  Launch(x.device(), {"rms_norm.metal", "add_rms_norm", {x.scalar_type(), norm.kind.policy, aligned ? 8 : 1}})
      .in(x)
      .in(residual)
      .in(weight)
      .out(y)
      .out(h)
      .args(args)
      .run(grid(x));
  return {y, h};
}

} // namespace

FOUNDRY_OP("rms_norm(Tensor x, Tensor weight, float eps, str kind=\"llama\", Tensor? residual=None) -> Tensor",
           "rms_norm", rms_norm)
FOUNDRY_OP("add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, str kind=\"llama\", float scale=1.0) "
           "-> (Tensor, Tensor)",
           "add_rms_norm", add_rms_norm)

} // namespace foundry
