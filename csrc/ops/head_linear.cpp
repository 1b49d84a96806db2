#include "linear/head_linear.h"

#include "core/op.h"
#include "core/quant_table.h"
#include "ops/layout.h"

namespace foundry {
namespace {

at::Tensor head_linear(const at::Tensor& x, const at::Tensor& weight) {
  Dim T("tokens"), H("heads"), N("out_features"), K("in_features");
  check("x", x).floating().shape({T, H, K}).last_dim_contiguous();
  check("weight", weight).like(x).shape({H, N, K});
  const bool rows = weight.stride(2) == 1;
  TORCH_CHECK(rows || weight.stride(1) == 1, "weight: expected contiguous rows or columns, got shape ", weight.sizes(),
              " with strides ", weight.strides());
  check_output_size(T.value() * H.value(), N);
  at::Tensor y = at::empty({T, H, N}, x.options());
  if (y.numel() == 0) return y;
  if (K.value() == 0) return y.zero_();

  HeadLinearArgs args{};
  args.heads = u32(H), args.n = u32(N), args.k = u32(K);
  args.x_token = u32(x.stride(0)), args.x_head = u32(x.stride(1));
  args.w_head = u32(weight.stride(0)), args.stride = u32(weight.stride(rows ? 1 : 2));
  const at::Tensor side_by_side = rows ? weight : weight.transpose(1, 2);
  const bool aligned = side_by_side.size(2) % 8 == 0 && aligned_rows(side_by_side) && (!rows || aligned_rows(x));
  const int vector = aligned ? 8 : 1;
  const char* function = rows ? "head_linear_rows" : "head_linear_columns";
  Launch launch(x.device(), {"head_linear.metal", function, {x.scalar_type(), vector}});
  launch.in(x).in(weight).out(y).args(args).min_bytes(x.nbytes() + weight.nbytes() + y.nbytes());
  const uint32_t outputs = rows ? head_linear_simdgroups * head_linear_outputs : simd_width * vector;
  launch.run(per_row(ceil_div(N, outputs), simd_width * head_linear_simdgroups, T, H));
  return y;
}

} // namespace

FOUNDRY_OP("head_linear(Tensor x, Tensor weight) -> Tensor", "head_linear", head_linear)

} // namespace foundry
