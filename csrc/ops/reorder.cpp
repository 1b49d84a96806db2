// Columns of x in the order in which a weight stores its own (GPTQ's act-order): shaders/reorder.metal.
#include "reorder.h"

#include "core/op.h"

namespace foundry {
namespace {

std::tuple<at::Tensor, at::Tensor> reorder(const at::Tensor& x, const at::Tensor& order, const OptionalTensor& gain) {
  Dim N("features");
  check("x", x).floating().last(N).contiguous();
  check("order", order).dtype({at::kInt}).device(x).shape({N}).contiguous();
  if (gain) check("gain", *gain).like(x).shape({N}).contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options());
  at::Tensor gains = at::empty({gain ? x.size(-1) : 0}, x.options());
  if (x.numel() == 0 && gains.numel() == 0) return {y, gains};

  ReorderArgs args{};
  args.n = u32(x.size(-1));
  args.rows = u32(x.numel() / std::max<int64_t>(x.size(-1), 1));
  args.threads_per_row = ceil_div(args.n, reorder_per_thread);
  const int64_t rows = args.rows + (gain ? 1 : 0);
  // what has no elements has no memory: the other stands in for it
  Launch(x.device(), {"reorder.metal", "reorder", {x.scalar_type()}})
      .in(args.rows ? x : *gain)
      .in(order)
      .in_or(gain, x)
      .out(args.rows ? y : gains)
      .out(gain ? gains : y)
      .args(args)
      .run(per_element(rows * args.threads_per_row));
  return {y, gains};
}

} // namespace

FOUNDRY_OP("reorder(Tensor x, Tensor order, Tensor? gain=None) -> (Tensor, Tensor)", "reorder", reorder)

} // namespace foundry
