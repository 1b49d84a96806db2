// y = act(x W^T + bias), then residual + scale * y, for weights of any format.
#include "linear.h"

#include "core/op.h"
#include "core/quant_table.h"
#include "quant/format.h"

namespace foundry {
namespace {

using Format = std::optional<std::string>;
using OptionalTensor = std::optional<at::Tensor>;

// Which kernel serves M rows: the first line whose limit is not below M. This is the only place that decides it.
struct Route {
  int64_t limit;         // largest M
  const char* function;
  int rows;              // rows of x that share one reading of the weight; 0: a tile of linear_bm
};
constexpr Route kRoutes[] = {
    {1, "linear_rows", 1},   // decode: bound by reading W once
    {2, "linear_rows", 2},   // few rows still are; the sums of one row do not depend on how many share the reading, so
    {4, "linear_rows", 4},   // results equal those of M = 1 bit for bit
    {16, "linear_rows", 8},  // 9..16: W is read twice, which costs less than a tile that is mostly padding
    {INT64_MAX, "linear_tiles", 0},
};
constexpr int kRouteCount = sizeof(kRoutes) / sizeof(kRoutes[0]);

int route(int64_t m) {
  int i = 0;
  while (m > kRoutes[i].limit) i++;
  return i;
}

uint32_t activation_code(const Format& name) {
  if (!name) return activation_none;
  if (*name == "silu") return activation_silu;
  if (*name == "gelu_tanh") return activation_gelu_tanh;
  if (*name == "gelu") return activation_gelu;
  TORCH_CHECK(false, "activation: expected silu, gelu_tanh, gelu or None, got '", *name, "'");
}

// Elements from one row of t[..., n] to the next. Rows must be evenly spaced: a slice of one dimension is fine.
int64_t row_stride(const char* name, const at::Tensor& t) {
  check(name, t).last_dim_contiguous();
  int64_t stride = -1, next = 0;
  for (int64_t i = t.dim() - 2; i >= 0; i--) {
    if (t.size(i) == 1) continue;
    if (stride < 0) stride = t.stride(i);
    TORCH_CHECK(next == 0 || t.stride(i) == next, name, ": expected evenly spaced rows, got shape ", t.sizes(),
                " with strides ", t.strides());
    next = t.stride(i) * t.size(i);
  }
  return stride < 0 ? t.size(-1) : stride;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const Format& format, const OptionalTensor& bias,
                  const OptionalTensor& residual, double scale, const Format& activation) {
  const WeightMatrix w = weight_matrix("weight", weight, format);
  Dim K("in_features", w.k), N("out_features", w.n);
  check("x", x).last(K).floating().device(weight);
  const int64_t x_stride = row_stride("x", x);
  TORCH_CHECK(w.k > 0, "weight: expected at least one input feature, got ", weight.sizes());

  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = w.n;
  if (bias) check("bias", *bias).shape({N}).contiguous().like(x);
  int64_t residual_stride = 0;
  if (residual) {
    check("residual", *residual).like(x);
    TORCH_CHECK(residual->sizes() == at::IntArrayRef(shape), "residual: expected ", at::IntArrayRef(shape), ", got ",
                residual->sizes());
    residual_stride = row_stride("residual", *residual);
  }
  at::Tensor y = at::empty(shape, x.options());
  check("output", y);
  if (y.numel() == 0) return y;

  const int64_t m = x.numel() / w.k;
  const int r = route(m);
  const int rows = kRoutes[r].rows;
  const bool vectors = w.vectors && w.k % chunk == 0 && x_stride % 4 == 0 && vector_aligned(x.const_data_ptr(), x.itemsize());
  static PipelineTable<kMaxFormats * 3 * kRouteCount * 2> table;
  const int variant = ((w.format.index * 3 + dtype_index(x.scalar_type())) * kRouteCount + r) * 2 + vectors;
  Pipeline& p = table.get(x.device(), variant, [&] {
    Kernel kernel{"linear.metal", kRoutes[r].function, {w.format.policy, metal_type(x.scalar_type())}};
    if (rows) kernel.arguments.push_back(std::to_string(rows));
    kernel.arguments.push_back(vectors ? "4" : "1");
    return kernel;
  });
  const auto u32 = [](int64_t v) { return static_cast<uint32_t>(v); };
  const LinearArgs args{u32(m), u32(w.n), u32(w.k), u32(w.row_blocks), u32(x_stride), u32(residual_stride),
                        activation_code(activation), bias.has_value(), residual.has_value(), static_cast<float>(scale)};
  const int64_t moved = weight.nbytes() + x.nbytes() + y.nbytes() + (bias ? bias->nbytes() : 0) +
                        (residual ? residual->nbytes() : 0);
  const Grid grid = rows ? simdgroup_per_row(ceil_div(w.n, linear_outputs), linear_simdgroups, ceil_div(m, rows))
                         : tiles(m, w.n, linear_bm, linear_bn, linear_tile_threads);
  Launch(p)
      .in(weight)
      .in(x)
      .in(bias ? *bias : x)  // bound but not read when absent: LinearArgs says so
      .in(residual ? *residual : x)
      .out(y)
      .args(args)
      .moves(moved)
      .run(grid);
  return y;
}

}  // namespace

FOUNDRY_OP("linear(Tensor x, Tensor weight, *, str? format=None, Tensor? bias=None, Tensor? residual=None, "
           "float scale=1.0, str? activation=None) -> Tensor",
           "linear", linear)

}  // namespace foundry
