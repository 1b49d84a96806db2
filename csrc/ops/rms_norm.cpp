#include "ops/rms_norm.h"

#include "ops/autograd.h"
#include "ops/options.h"
#include "norm/rms_norm_backward.h"

namespace foundry {
namespace {

Grid grid(const at::Tensor& x) { return per_row(row_count(x), rms_norm_threads(x.size(-1))); }

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
  const int vector = !residual || aligned_rows(*residual) ? rms_norm_vector(x, weight) : 1;
  Launch launch(x.device(), {"rms_norm.metal",
                             "rms_norm",
                             {x.scalar_type(), norm.kind.policy, vector},
                             {{FC_RMS_NORM_RESIDUAL, residual.has_value()}, {FC_RMS_NORM_SCALE, scale.has_value()}}});
  launch.in(x).in(weight).in(residual).in(scale).out(y).args(args).run(grid(x));
  return y;
}

std::tuple<at::Tensor, at::Tensor> rms_norm_backward(const at::Tensor& grad, const at::Tensor& x,
                                                     const at::Tensor& weight, double eps, std::string_view kind) {
  Dim H("hidden");
  const Norm norm(kind, eps);
  check("x", x).floating().last(H).last_dim_contiguous();
  check("weight", weight).shape({H}).contiguous().like(x);
  check("grad", grad).like(x).last_dim_contiguous();
  check_same_shape("grad", grad, "x", x);
  at::Tensor x_grad = at::empty(x.sizes(), x.options());
  at::Tensor inverse_rms = at::empty(x.sizes().slice(0, x.dim() - 1), x.options().dtype(at::kFloat));
  if (x.numel() == 0) return {x_grad, inverse_rms.zero_()};

  RmsNormBackwardArgs args{};
  args.hidden = u32(x.size(-1));
  args.eps = norm.eps;
  args.grad = rows_of("grad", grad);
  args.x = rows_of("x", x);
  const int vector = aligned_rows(grad) ? rms_norm_vector(x, weight) : 1;
  Launch(x.device(), {"rms_norm_backward.metal", "rms_norm_backward", {x.scalar_type(), norm.kind.policy, vector}})
      .in(grad)
      .in(x)
      .in(weight)
      .out(x_grad)
      .out(inverse_rms)
      .args(args)
      .run(grid(x));
  return {x_grad, inverse_rms};
}

at::Tensor rms_norm_backward_weight(const at::Tensor& grad, const at::Tensor& x, const at::Tensor& inverse_rms) {
  check("x", x).floating().last_dim_contiguous();
  TORCH_CHECK(x.dim() > 0, "x: expected at least one dimension, got []");
  check("grad", grad).like(x).last_dim_contiguous();
  check_same_shape("grad", grad, "x", x);
  check("inverse_rms", inverse_rms).device(x).dtype({at::kFloat}).contiguous();
  TORCH_CHECK(inverse_rms.sizes() == x.sizes().slice(0, x.dim() - 1),
              "inverse_rms: expected a number for each row of x, ", x.sizes(), ", got ", inverse_rms.sizes());
  if (x.numel() == 0) return at::zeros({x.size(-1)}, x.options());
  at::Tensor weight_grad = at::empty({x.size(-1)}, x.options());
  RmsNormWeightArgs args{};
  args.hidden = u32(x.size(-1));
  args.rows = u32(row_count(x));
  args.grad = rows_of("grad", grad);
  args.x = rows_of("x", x);
  Launch(x.device(), {"rms_norm_backward.metal", "rms_norm_backward_weight", {x.scalar_type()}})
      .in(grad)
      .in(x)
      .in(inverse_rms)
      .out(weight_grad)
      .args(args)
      .run(per_row(ceil_div(args.hidden, simd_width), simd_width * rms_norm_weight_simdgroups));
  return weight_grad;
}

at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, double eps, std::string_view kind,
                   const OptionalTensor& residual, const OptionalTensor& scale) {
  static const auto op = dispatched<decltype(rms_norm)>("rms_norm");
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, weight, eps, kind, residual, scale);
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight, double eps,
                            std::string_view kind, const OptionalTensor& residual, const OptionalTensor& scale) {
    auto& saved = context->saved_data;
    saved["x"] = x.requires_grad(), saved["weight"] = weight.requires_grad();
    saved["residual"] = residual && residual->requires_grad();
    saved["eps"] = eps, saved["kind"] = std::string(kind), saved["scaled"] = scale.has_value();
    context->save_for_backward({x, weight});
    return foundry::forward(x, weight, eps, kind, residual, scale);
  }

  static Tensors backward(Context* context, const Tensors& grads) {
    static const auto of_x = dispatched<decltype(rms_norm_backward)>("rms_norm_backward");
    static const auto of_weight = dispatched<decltype(rms_norm_backward_weight)>("rms_norm_backward_weight");
    auto& saved = context->saved_data;
    TORCH_CHECK_NOT_IMPLEMENTED(!saved["scaled"].toBool(), "rms_norm: backward is not implemented for a scale");
    const Tensors tensors = context->get_saved_variables();
    const at::Tensor &x = tensors[0], &weight = tensors[1], grad = with_rows(grads[0]);
    Tensors result(6);
    if (saved["residual"].toBool()) result[4] = grads[0];
    if (!saved["x"].toBool() && !saved["weight"].toBool()) return result;
    const std::string kind = saved["kind"].toStringRef();
    const auto [x_grad, inverse_rms] = of_x.call(grad, x, weight, saved["eps"].toDouble(), kind);
    if (saved["x"].toBool()) result[0] = x_grad;
    if (saved["weight"].toBool()) result[1] = of_weight.call(grad, x, inverse_rms);
    return result;
  }
};

at::Tensor rms_norm_autograd(const at::Tensor& x, const at::Tensor& weight, double eps, std::string_view kind,
                             const OptionalTensor& residual, const OptionalTensor& scale) {
  if (!torch::autograd::compute_requires_grad(x, weight, residual, scale))
    return forward(x, weight, eps, kind, residual, scale);
  return RmsNormFunction::apply(x, weight, eps, kind, residual, scale);
}

} // namespace

FOUNDRY_DIFFERENTIABLE_OP("rms_norm(Tensor x, Tensor weight, float eps, str kind=\"llama\", Tensor? residual=None, "
                          "Tensor? scale=None) -> Tensor",
                          "rms_norm", rms_norm, &rms_norm_autograd)
FOUNDRY_OP("rms_norm_backward(Tensor grad, Tensor x, Tensor weight, float eps, str kind=\"llama\") -> (Tensor, Tensor)",
           "rms_norm_backward", rms_norm_backward)
FOUNDRY_OP("rms_norm_backward_weight(Tensor grad, Tensor x, Tensor inverse_rms) -> Tensor", "rms_norm_backward_weight",
           rms_norm_backward_weight)

} // namespace foundry
