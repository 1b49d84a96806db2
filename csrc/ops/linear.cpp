// y = act(x W^T + bias), then residual + scale * y, for weights of any format.
#include "linear.h"

#include <cmath>

#include "core/op.h"
#include "core/quant_table.h"
#include "core/tuning.h"
#include "ops/layout.h"
#include "quant/format.h"

namespace foundry {
namespace {

using Name = std::optional<std::string_view>;
using OptionalTensor = std::optional<at::Tensor>;

// Which kernel serves M rows: the first line whose limit is not below M. Above FEW and FEW_DENSE rows
// (torch_foundry/nn/linear.py) modules ask torch for the product instead, so this op sees no more unless it is called
// by itself.
struct Route {
  int64_t limit; // largest M
  const char* function;
  int rows; // rows of x that share one reading of the weight; 0: a tile of linear_bm
};
constexpr Route kRoutes[] = {
    {1, "linear_rows", 1},  // decode: bound by reading W once
    {2, "linear_rows", 2},  // few rows still are; the sums of one row do not depend on how many share the reading, so
    {4, "linear_rows", 4},  // results equal those of M = 1 bit for bit
    {16, "linear_rows", 8}, // 9..16: W is read twice, which costs less than a tile that is mostly padding
    {INT64_MAX, "linear_tiles", 0},
};
constexpr int kRouteCount = sizeof(kRoutes) / sizeof(kRoutes[0]);

// apart: by a kernel whose rows don't depend on each other, however many there are.
int route(int64_t m, bool apart) {
  int i = 0;
  while (m > kRoutes[i].limit && !(apart && i == kRouteCount - 2)) i++;
  return i;
}

// Values of LinearArgs::activation.
uint32_t activation_code(Name name) {
  return name ? activation_silu + choose("activation", *name, {"silu", "gelu_tanh", "gelu"}) : activation_none;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, Name format, const OptionalTensor& bias,
                  const OptionalTensor& residual, double scale, Name activation, bool apart) {
  const WeightMatrix w = weight_matrix("weight", weight, format);
  Dim K("in_features", w.k), N("out_features", w.n);
  check("x", x).last(K).floating().last_dim_contiguous().device(weight);
  TORCH_CHECK(std::isfinite(scale), "scale: expected a finite number, got ", scale);
  TORCH_CHECK(w.k > 0, "weight: expected at least one input feature, got ", weight.sizes());

  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = w.n;
  if (bias) check("bias", *bias).shape({N}).contiguous().like(x);
  const int64_t m = x.numel() / w.k;
  check_output_size(m, w.n);
  at::Tensor y = at::empty(shape, x.options());
  if (residual) {
    check("residual", *residual).like(x).last_dim_contiguous();
    check_same_shape("residual", *residual, "the output", y);
  }
  if (y.numel() == 0) return y;

  const int r = route(m, apart);
  const int rows = kRoutes[r].rows;
  const bool aligned = w.k % chunk == 0 && aligned_rows(x) && (w.format.packed() || aligned_rows(weight));
  const int width = !aligned ? 1 : rows && in_words(w, weight) ? 16 : 8; // V of gemv.h
  const LinearChoice choice =
      rows ? linear_choice(x.device(), w.format.index, rows, w.n, w.k) : LinearChoice{1, 1, 1, 1, 1};
  static PipelineTable<kMaxFormats * 3 * kRouteCount * 3 * kLinearLayouts> table;
  const int kind = (w.format.index * 3 + dtype_index(x.scalar_type())) * kRouteCount + r;
  const int variant = (kind * 3 + (width > 1) + (width > 8)) * kLinearLayouts + layout_index(choice);
  Pipeline& p = table.get(x.device(), variant, [&] {
    Kernel kernel{"linear.metal", kRoutes[r].function, {w.format.policy, metal_type(x.scalar_type())}};
    if (rows) {
      for (int n : {rows, width, int(choice.outputs), int(choice.steps), int(choice.chains)})
        kernel.arguments.push_back(std::to_string(n));
    } else {
      kernel.arguments.push_back(std::to_string(width));
    }
    return kernel;
  });
  LinearArgs args{};
  args.rows = static_cast<uint32_t>(m);
  args.n = static_cast<uint32_t>(w.n);
  args.k = static_cast<uint32_t>(w.k);
  args.row_blocks = static_cast<uint32_t>(w.row_blocks);
  args.split = choice.split;
  args.activation = activation_code(activation);
  args.has_bias = bias.has_value();
  args.has_residual = residual.has_value();
  args.scale = static_cast<float>(scale);
  args.x = rows_of("x", x);
  if (residual) args.residual = rows_of("residual", *residual);
  const int64_t moved =
      weight.nbytes() + x.nbytes() + y.nbytes() + (bias ? bias->nbytes() : 0) + (residual ? residual->nbytes() : 0);
  Launch launch(p);
  launch.in(weight)
      .in(x)
      .in(bias ? *bias : x) // bound but not read when absent: LinearArgs says so
      .in(residual ? *residual : x)
      .out(y)
      .args(args)
      .moves(moved);
  if (!rows) {
    launch.run(tiles(m, w.n, linear_bm, linear_bn, linear_tile_threads));
    return y;
  }
  const uint32_t teams = choice.simdgroups / choice.split;
  const size_t partials = choice.split > 1 ? choice.simdgroups * choice.outputs * rows : 1; // no length 0 in Metal
  launch.tgmem(partials * sizeof(float));
  launch.run({{ceil_div(w.n, choice.outputs * teams), ceil_div(m, rows), 1}, {kSimdWidth * choice.simdgroups, 1, 1}});
  return y;
}

} // namespace

FOUNDRY_OP("linear(Tensor x, Tensor weight, str? format=None, Tensor? bias=None, Tensor? residual=None, "
           "float scale=1.0, str? activation=None, bool apart=False) -> Tensor",
           "linear", linear)

} // namespace foundry
