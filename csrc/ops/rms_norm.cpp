#include <cmath>
#include <tuple>

#include "core/op.h"
#include "ops/layout.h"
#include "rms_norm.h"

namespace foundry {
namespace {

constexpr const char* kKinds[] = {"Llama", "Olmo", "Gemma"};

int kind_index(std::string_view kind) { return choose("kind", kind, {"llama", "olmo", "gemma"}); }

void check_operands(const at::Tensor& x, const at::Tensor& weight, double eps) {
  Dim H("hidden");
  check("x", x).floating().last(H).last_dim_contiguous();
  check("weight", weight).shape({H}).contiguous().like(x);
  TORCH_CHECK(std::isfinite(eps) && eps >= 0, "eps: expected a finite number >= 0, got ", eps);
}

void check_residual(const at::Tensor& residual, const at::Tensor& x) {
  check("residual", residual).like(x);
  check_same_shape("residual", residual, "x", x);
  check("residual", residual).last_dim_contiguous();
}

Grid grid(const at::Tensor& x) {
  const uint32_t per_thread = x.size(-1) < rms_norm_long ? rms_norm_per_thread : rms_norm_per_thread_long;
  const uint32_t simdgroups = ceil_div(x.size(-1), per_thread * kSimdWidth);
  return per_row(row_count(x), kSimdWidth * std::min(simdgroups, rms_norm_max_threads / kSimdWidth));
}

bool is_aligned(const at::Tensor& x, const at::Tensor& weight) {
  return x.size(-1) % 8 == 0 && aligned_rows(x) && aligned_rows(weight);
}

Kernel kernel(const char* function, const at::Tensor& x, int kind, bool aligned) {
  return {"rms_norm.metal", function, {metal_type(x.scalar_type()), kKinds[kind], aligned ? "8" : "1"}, {}, ""};
}

RmsNormArgs arguments(const at::Tensor& x, double eps) {
  RmsNormArgs args{};
  args.hidden = static_cast<uint32_t>(x.size(-1));
  args.eps = static_cast<float>(eps);
  args.x = rows_of("x", x);
  return args;
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, std::string_view kind_name,
                    const std::optional<at::Tensor>& residual) {
  const int kind = kind_index(kind_name);
  check_operands(x, weight, eps);
  if (residual) check_residual(*residual, x);
  at::Tensor y = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return y;

  RmsNormArgs args = arguments(x, eps);
  if (residual) args.residual = rows_of("residual", *residual);
  const bool aligned = is_aligned(x, weight) && (!residual || aligned_rows(*residual));
  static PipelineTable<36> table;
  const int variant = ((dtype_index(x.scalar_type()) * 3 + kind) * 2 + aligned) * 2 + residual.has_value();
  Pipeline& pipeline = table.get(x.device(), variant, [&] {
    Kernel k = kernel("rms_norm", x, kind, aligned);
    k.constants = {{FC_RMS_NORM_RESIDUAL, residual.has_value()}};
    return k;
  });
  Launch launch(pipeline);
  launch.in(x).in(weight);
  residual ? launch.in(*residual) : launch.none();
  launch.out(y).args(args).run(grid(x));
  return y;
}

std::tuple<at::Tensor, at::Tensor> add_rms_norm(const at::Tensor& x, const at::Tensor& residual,
                                                const at::Tensor& weight, double eps, std::string_view kind_name,
                                                double scale) {
  const int kind = kind_index(kind_name);
  check_operands(x, weight, eps);
  check_residual(residual, x);
  at::Tensor y = at::empty(x.sizes(), x.options()), h = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return {y, h};

  RmsNormArgs args = arguments(x, eps);
  args.scale = static_cast<float>(scale);
  args.residual = rows_of("residual", residual);
  const bool aligned = is_aligned(x, weight) && aligned_rows(residual);
  static PipelineTable<18> table;
  const int variant = (dtype_index(x.scalar_type()) * 3 + kind) * 2 + aligned;
  Pipeline& pipeline = table.get(x.device(), variant, [&] { return kernel("add_rms_norm", x, kind, aligned); });
  Launch(pipeline).in(x).in(residual).in(weight).out(y).out(h).args(args).run(grid(x));
  return {y, h};
}

} // namespace

FOUNDRY_OP("rms_norm(Tensor x, Tensor weight, float eps, str kind=\"llama\", Tensor? residual=None) -> Tensor",
           "rms_norm", rms_norm)
FOUNDRY_OP("add_rms_norm(Tensor x, Tensor residual, Tensor weight, float eps, str kind=\"llama\", float scale=1.0) "
           "-> (Tensor, Tensor)",
           "add_rms_norm", add_rms_norm)

} // namespace foundry
