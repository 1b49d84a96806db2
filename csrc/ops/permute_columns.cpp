// Columns of x in the order in which a weight stores its own (GPTQ's act-order): shaders/linear/permute_columns.metal.
#include "linear/permute_columns.h"

#include "core/op.h"

namespace foundry {
namespace {

std::tuple<at::Tensor, at::Tensor> permute_columns(const at::Tensor& x, const at::Tensor& order,
                                                   const OptionalTensor& norm_weight) {
  Dim N("features");
  check("x", x).floating().last(N).contiguous();
  check("order", order).dtype({at::kInt}).device(x).shape({N}).contiguous();
  if (norm_weight) check("norm_weight", *norm_weight).like(x).shape({N}).contiguous();
  at::Tensor y = at::empty(x.sizes(), x.options());
  at::Tensor permuted_norm = at::empty({norm_weight ? x.size(-1) : 0}, x.options());
  if (x.numel() == 0 && permuted_norm.numel() == 0) return {y, permuted_norm};

  PermuteColumnsArgs args{};
  args.n = u32(x.size(-1));
  args.rows = u32(x.numel() / std::max<int64_t>(x.size(-1), 1));
  args.threads_per_row = ceil_div(args.n, permute_per_thread);
  const int64_t rows = args.rows + (norm_weight ? 1 : 0);
  // what has no elements has no memory: the other stands in for it
  Launch(x.device(), {"permute_columns.metal", "permute_columns", {x.scalar_type()}})
      .in(args.rows ? x : *norm_weight)
      .in(order)
      .in_or(norm_weight, x)
      .out(args.rows ? y : permuted_norm)
      .out(norm_weight ? permuted_norm : y)
      .args(args)
      .run(per_element(rows * args.threads_per_row));
  return {y, permuted_norm};
}

} // namespace

FOUNDRY_OP("permute_columns(Tensor x, Tensor order, Tensor? norm_weight=None) -> (Tensor, Tensor)", "permute_columns",
           permute_columns)

} // namespace foundry
