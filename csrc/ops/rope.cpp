// Rotary embedding of heads alone; its backward is the same op by the transposed rotation.
#include "attention/rope.h"

#include "ops/autograd.h"
#include "ops/layout.h"

namespace foundry {
namespace {

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleaved, bool transposed) {
  Dim B("batch"), H("heads"), L("tokens"), D("head_dim"), R("rotary_dim");
  check("x", x).floating().dim(4).shape({B, H, L, D}).last_dim_contiguous();
  const auto check_table = [&](const char* name, const at::Tensor& table) {
    check(name, table).device(x).dtype({at::kFloat, x.scalar_type()}).dim(3).last_dim_contiguous();
    TORCH_CHECK(table.size(0) == B || table.size(0) == 1, name, ": expected a batch of ", B.value(), " or 1, got ",
                table.sizes());
    check(name, table).shape({table.size(0), L, R});
  };
  check_table("cos", cos);
  check_table("sin", sin);
  check("sin", sin).dtype({cos.scalar_type()});
  TORCH_CHECK(D.value() % 2 == 0, "x: expected an even head_dim, got ", x.sizes());
  TORCH_CHECK(R.value() > 0 && R.value() % 2 == 0 && R.value() <= D,
              "cos: expected an even last dimension of 2 to head_dim=", D.value(), ", got ", cos.sizes());
  // as projections lie in memory, so that nothing has to be copied on the way back to them
  at::Tensor y = at::empty_strided({B, H, L, D}, {L * H * D, D, H * D, 1}, x.options());
  if (x.numel() == 0) return y;

  const auto fits = [](const at::Tensor& t, int64_t dim) { return dim % 16 == 0 && aligned_rows(t); };
  const bool aligned = fits(x, D) && fits(cos, R) && fits(sin, R);
  RopeArgs args{};
  args.tokens = u32(L), args.heads = u32(H), args.head_dim = u32(D), args.rotary_dim = u32(R);
  args.units = args.head_dim / (aligned ? 16 : 2);
  args.x_batch = u32(x.stride(0)), args.x_head = u32(x.stride(1)), args.x_token = u32(x.stride(2));
  args.cos_batch = stride_of(cos, 0), args.cos_token = u32(cos.stride(1));
  args.sin_batch = stride_of(sin, 0), args.sin_token = u32(sin.stride(1));
  args.interleaved = interleaved;
  args.transposed = transposed;
  Launch(x.device(), {"rope.metal", "rope", {x.scalar_type(), cos.scalar_type(), aligned ? 8 : 1}})
      .in(x)
      .in(cos)
      .in(sin)
      .out(y)
      .args(args)
      .run(per_element(args.units * (x.numel() / D)));
  return y;
}

at::Tensor forward(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleaved,
                   bool transposed) {
  static const auto op = dispatched<decltype(rope)>("rope");
  const at::AutoDispatchBelowADInplaceOrView below;
  return op.call(x, cos, sin, interleaved, transposed);
}

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  using Context = torch::autograd::AutogradContext;
  using Tensors = torch::autograd::variable_list;

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                            bool interleaved, bool transposed) {
    auto& saved = context->saved_data;
    saved["interleaved"] = interleaved, saved["transposed"] = transposed;
    saved["tables"] = cos.requires_grad() || sin.requires_grad();
    context->save_for_backward({cos, sin});
    return foundry::forward(x, cos, sin, interleaved, transposed);
  }

  static Tensors backward(Context* context, const Tensors& grads) {
    static const auto op = dispatched<decltype(rope)>("rope");
    auto& saved = context->saved_data;
    TORCH_CHECK_NOT_IMPLEMENTED(!saved["tables"].toBool(), "rope: backward is not implemented for cos and sin");
    const Tensors tables = context->get_saved_variables();
    Tensors result(5);
    result[0] = op.call(with_rows(grads[0]), tables[0], tables[1], saved["interleaved"].toBool(),
                        !saved["transposed"].toBool());
    return result;
  }
};

at::Tensor rope_autograd(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, bool interleaved,
                         bool transposed) {
  if (!torch::autograd::compute_requires_grad(x, cos, sin)) return forward(x, cos, sin, interleaved, transposed);
  return RopeFunction::apply(x, cos, sin, interleaved, transposed);
}

} // namespace

FOUNDRY_DIFFERENTIABLE_OP("rope(Tensor x, Tensor cos, Tensor sin, bool interleaved=False, bool transposed=False) -> "
                          "Tensor",
                          "rope", rope, &rope_autograd)

} // namespace foundry
