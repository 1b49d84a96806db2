// The backward of `linear`, and the product with the transposed weight that it takes: grad W.
#include "ops/linear_backward.h"

#include "ops/autograd.h"
#include "core/quant_table.h"
#include "linear/linear.h"
#include "linear/linear_backward.h"
#include "ops/layout.h"
#include "quant/format.h"

namespace foundry {
namespace {

at::Tensor linear_backward_input(const at::Tensor& grad, const at::Tensor& weight, OptionalName format) {
  const WeightMatrix w = weight_matrix("weight", weight, format);
  Dim N("out_features", w.n);
  check("grad", grad).last(N).floating().last_dim_contiguous().device(weight);
  TORCH_CHECK(w.k > 0, "weight: expected at least one input feature, got ", weight.sizes());
  std::vector<int64_t> shape = grad.sizes().vec();
  shape.back() = w.k;
  if (w.n == 0) return at::zeros(shape, grad.options());
  const int64_t m = grad.numel() / w.n;
  check_output_size(m, w.k);
  at::Tensor x_grad = at::empty(shape, grad.options());
  if (x_grad.numel() == 0) return x_grad;
  LinearBackwardArgs args{};
  args.rows = u32(m);
  args.n = u32(w.n);
  args.k = u32(w.k);
  args.row_blocks = u32(w.row_blocks);
  args.grad = rows_of("grad", grad);
  const bool vectors = w.n % chunk == 0 && aligned_rows(grad);
  const bool aligned = vectors && (w.format.packed() || (w.k % chunk == 0 && aligned_rows(weight)));
  Launch launch(
      grad.device(),
      {"linear_backward.metal", "linear_backward_input", {w.format.policy, grad.scalar_type(), aligned ? 8 : 1}});
  launch.in(weight).in(grad).out(x_grad).args(args).min_bytes(weight.nbytes() + grad.nbytes() + x_grad.nbytes());
  launch.run(tiles(m, w.k, linear_bm, linear_bn, linear_tile_threads));
  return x_grad;
}

// Both go through the dispatcher, so that tracing and fake tensors see them.
at::Tensor forward(const at::Tensor& x, const at::Tensor& weight, OptionalName format, const OptionalTensor& bias,
                   const OptionalTensor& residual, double scale, OptionalName activation, bool batch_invariant) {
  static const auto op = dispatched<decltype(linear_autograd)>("linear");
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, weight, format, bias, residual, scale, activation, batch_invariant);
}

at::Tensor input_gradient(const at::Tensor& grad, const at::Tensor& weight, OptionalName format) {
  static const auto op = dispatched<decltype(linear_backward_input)>("linear_backward_input");
  return op.call(grad, weight, format);
}

at::Tensor as_rows(const at::Tensor& x) { return x.dim() == 1 ? x.unsqueeze(0) : x.flatten(0, -2); }

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight, OptionalName format,
                            const OptionalTensor& bias, const OptionalTensor& residual, double scale,
                            OptionalName activation, bool batch_invariant) {
    auto& saved = context->saved_data;
    const auto needed = [](const OptionalTensor& t) { return t && t->requires_grad(); };
    saved["x"] = x.requires_grad(), saved["weight"] = weight.requires_grad();
    saved["bias"] = needed(bias), saved["residual"] = needed(residual);
    saved["scale"] = scale, saved["format"] = format, saved["activation"] = activation;
    context->save_for_backward({weight, weight.requires_grad() ? x : at::Tensor()});
    return foundry::forward(x, weight, format, bias, residual, scale, activation, batch_invariant);
  }

  static Tensors backward(Context* context, const Tensors& grads) {
    auto& saved = context->saved_data;
    const Tensors tensors = context->get_saved_variables();
    const at::Tensor &grad = grads[0], &weight = tensors[0], &x = tensors[1];
    Tensors result(8);
    if (saved["residual"].toBool()) result[4] = grad;
    const std::optional<std::string> format = saved["format"].toOptional<std::string>();
    const std::optional<std::string> activation = saved["activation"].toOptional<std::string>();
    if (!saved["x"].toBool() && !saved["weight"].toBool() && !saved["bias"].toBool()) return result;
    TORCH_CHECK_NOT_IMPLEMENTED(!activation, "linear: backward is not implemented for an activation, got ",
                                *activation);
    const double scale = saved["scale"].toDouble();
    const at::Tensor scaled = (scale == 1.0 ? grad : grad * scale).contiguous();
    if (saved["x"].toBool()) result[0] = input_gradient(scaled, weight, format);
    if (saved["weight"].toBool()) result[1] = as_rows(scaled).t().mm(as_rows(x)).to(weight.scalar_type());
    if (saved["bias"].toBool()) result[3] = as_rows(scaled).sum(0);
    return result;
  }
};

} // namespace

at::Tensor linear_autograd(const at::Tensor& x, const at::Tensor& weight, OptionalName format,
                           const OptionalTensor& bias, const OptionalTensor& residual, double scale,
                           OptionalName activation, bool batch_invariant) {
  if (!torch::autograd::compute_requires_grad(x, weight, bias, residual))
    return forward(x, weight, format, bias, residual, scale, activation, batch_invariant);
  return LinearFunction::apply(x, weight, format, bias, residual, scale, activation, batch_invariant);
}

FOUNDRY_OP("linear_backward_input(Tensor grad, Tensor weight, str? format=None) -> Tensor", "linear_backward_input",
           linear_backward_input)

} // namespace foundry
