#include "ops/autograd.h"
#include "linear/glu_backward.h"
#include "linear/sparse_glu.h"
#include "ops/layout.h"
#include "ops/options.h"

namespace foundry {
namespace {

at::Tensor glu(const at::Tensor& gate, const at::Tensor& up, std::string_view activation, double gate_scale) {
  const char* policy = activation_named(activation).policy;
  check("gate", gate).floating().last_dim_contiguous();
  check("up", up).like(gate).last_dim_contiguous();
  check_same_shape("up", up, "gate", gate);
  GluArgs args{};
  args.gate_scale = finite("gate_scale", gate_scale);
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  if (gate.numel() == 0) return y;

  const bool aligned = gate.size(-1) % 8 == 0 && aligned_rows(gate) && aligned_rows(up);
  args.n = u32(gate.size(-1));
  args.threads_per_row = ceil_div(args.n, glu_per_thread);
  args.gate = rows_of("gate", gate);
  args.up = rows_of("up", up);
  Launch(gate.device(), {"glu.metal", "glu", {gate.scalar_type(), policy, aligned ? 8 : 1}})
      .in(gate)
      .in(up)
      .out(y)
      .args(args)
      .run(per_element(row_count(gate) * args.threads_per_row));
  return y;
}

std::tuple<at::Tensor, at::Tensor> glu_backward(const at::Tensor& grad, const at::Tensor& gate, const at::Tensor& up,
                                                std::string_view activation, double gate_scale) {
  const char* policy = activation_named(activation).policy;
  check("gate", gate).floating().last_dim_contiguous();
  check("up", up).like(gate).last_dim_contiguous();
  check("grad", grad).like(gate).last_dim_contiguous();
  check_same_shape("up", up, "gate", gate);
  check_same_shape("grad", grad, "gate", gate);
  at::Tensor gate_grad = at::empty(gate.sizes(), gate.options()), up_grad = at::empty_like(gate_grad);
  if (gate.numel() == 0) return {gate_grad, up_grad};

  const bool aligned = gate.size(-1) % 8 == 0 && aligned_rows(gate) && aligned_rows(up) && aligned_rows(grad);
  GluBackwardArgs args{};
  args.n = u32(gate.size(-1));
  args.threads_per_row = ceil_div(args.n, glu_per_thread);
  args.gate_scale = finite("gate_scale", gate_scale);
  args.grad = rows_of("grad", grad);
  args.gate = rows_of("gate", gate);
  args.up = rows_of("up", up);
  Launch(gate.device(), {"glu_backward.metal", "glu_backward", {gate.scalar_type(), policy, aligned ? 8 : 1}})
      .in(grad)
      .in(gate)
      .in(up)
      .out(gate_grad)
      .out(up_grad)
      .args(args)
      .run(per_element(row_count(gate) * args.threads_per_row));
  return {gate_grad, up_grad};
}

at::Tensor forward(const at::Tensor& gate, const at::Tensor& up, std::string_view activation, double gate_scale) {
  static const auto op = dispatched<decltype(glu)>("glu");
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(gate, up, activation, gate_scale);
}

struct GluFunction : torch::autograd::Function<GluFunction> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static at::Tensor forward(Context* context, const at::Tensor& gate, const at::Tensor& up, std::string_view activation,
                            double gate_scale) {
    context->save_for_backward({gate, up});
    context->saved_data["activation"] = std::string(activation);
    context->saved_data["gate_scale"] = gate_scale;
    return foundry::forward(gate, up, activation, gate_scale);
  }

  static Tensors backward(Context* context, const Tensors& grads) {
    static const auto op = dispatched<decltype(glu_backward)>("glu_backward");
    const Tensors saved = context->get_saved_variables();
    const std::string activation = context->saved_data["activation"].toStringRef();
    const double gate_scale = context->saved_data["gate_scale"].toDouble();
    const auto [gate, up] = op.call(with_rows(grads[0]), saved[0], saved[1], activation, gate_scale);
    return {gate, up, at::Tensor(), at::Tensor()};
  }
};

at::Tensor glu_autograd(const at::Tensor& gate, const at::Tensor& up, std::string_view activation, double gate_scale) {
  if (!torch::autograd::compute_requires_grad(gate, up)) return forward(gate, up, activation, gate_scale);
  return GluFunction::apply(gate, up, activation, gate_scale);
}

at::Tensor sparse_glu(const at::Tensor& gate, const at::Tensor& up, double deviations, std::string_view activation) {
  const Activation& kind = activation_named(activation);
  TORCH_CHECK(!kind.of_pair, "activation: expected one of a single number, got ", activation);
  check("gate", gate).floating().last_dim_contiguous();
  check("up", up).like(gate).last_dim_contiguous();
  check_same_shape("up", up, "gate", gate);
  SparseGluArgs args{};
  args.deviations = finite("deviations", deviations);
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  if (gate.numel() == 0) return y;

  args.n = u32(gate.size(-1));
  args.gate = rows_of("gate", gate);
  args.up = rows_of("up", up);
  const uint32_t simdgroups = ceil_div(args.n, sparse_glu_per_thread * simd_width);
  Launch(gate.device(), {"sparse_glu.metal", "sparse_glu", {gate.scalar_type(), kind.policy}})
      .in(gate)
      .in(up)
      .out(y)
      .args(args)
      .run(per_row(row_count(gate), simd_width * std::min(simdgroups, sparse_glu_max_threads / simd_width)));
  return y;
}

} // namespace

FOUNDRY_DIFFERENTIABLE_OP("glu(Tensor gate, Tensor up, str activation=\"silu\", float gate_scale=1.0) -> Tensor", "glu",
                          glu, &glu_autograd)
FOUNDRY_OP("glu_backward(Tensor grad, Tensor gate, Tensor up, str activation=\"silu\", float gate_scale=1.0) -> "
           "(Tensor, Tensor)",
           "glu_backward", glu_backward)
FOUNDRY_OP("sparse_glu(Tensor gate, Tensor up, float deviations, str activation=\"gelu_tanh\") -> Tensor", "sparse_glu",
           sparse_glu)

} // namespace foundry
