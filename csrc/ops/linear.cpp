// y = act(x W^T + bias), then residual + scale * y, for weights of any format.
#include "linear/linear.h"

#include "core/op.h"
#include "core/quant_table.h"
#include "ops/gemv.h"
#include "ops/layout.h"
#include "ops/limits.h"
#include "ops/linear_backward.h"
#include "ops/options.h"
#include "quant/format.h"

namespace foundry {
namespace {

enum class Kernel { rows, matrix, tensors, tiles };

// Which kernel serves M rows. linear_rows: up to eight are bound by reading W once, and the sums of one row do not
// depend on how many share the reading, so results equal those of M = 1 bit for bit. That is promised up to kFewRows;
// beyond, the tuning table decides. Modules ask torch for the product of more (torch_foundry/nn/linear.py), so this op
// sees no more unless it is called by itself.
Kernel kernel_for(int64_t m, const at::Tensor& x, const WeightMatrix& w, const at::Tensor& weight,
                  bool batch_invariant) {
  if (batch_invariant || m <= kFewRows) return Kernel::rows;
  const LinearRoutes routes = linear_routes(x.device(), w.format.index, w.n, w.k);
  if (m <= routes.rows) return Kernel::rows;
  if (x.element_size() != 2 || !(w.format.packed() || weight.scalar_type() == x.scalar_type())) return Kernel::tiles;
  if (w.format.packed() && m <= routes.matrix) return Kernel::matrix;
  return m <= routes.tensors ? Kernel::tensors : Kernel::tiles;
}

// How linear_matrix_ahead multiplies.
struct Ahead {
  MatrixChoice choice;
  int width;  // V of matrix_rows.h
  int blocks; // of eight rows, in a threadgroup

  KernelKey name(KernelKey key) const { return key.add({width, choice.outputs, choice.steps, blocks}); }

  void run(Launch& launch, int64_t m, const WeightMatrix& w) const {
    const auto [outputs, steps, split, simdgroups, most] = choice;
    launch.tgmem(matrix_tile_bytes(8 * blocks, outputs, steps, split, simdgroups, u32(w.format.block_size),
                                   step_bytes(w.format)));
    // rows of x along the grid's first axis: what reads the same rows of W runs together
    launch.run(tiles(w.n, m, simdgroups / split * outputs, 8 * blocks, simdgroups * simd_width));
  }
};

// None where the table or how x and W lie don't allow it.
std::optional<Ahead> copied_ahead(const at::Tensor& x, int64_t m, const WeightMatrix& w, const at::Tensor& weight,
                                  int blocks) {
  const int bytes = w.format.packed() ? fragment_width(x, w, weight) : 0;
  if (!bytes) return {};
  const MatrixChoice choice = matrix_choice(x.device(), w.format.index, m, w.n, w.k);
  if (!choice.outputs) return {};
  return Ahead{choice, Gemv::width_of(aligned_rows(x), bytes == 16), std::min<int>(choice.blocks, blocks)};
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, OptionalName format, const OptionalTensor& bias,
                  const OptionalTensor& residual, double scale, OptionalName activation, bool batch_invariant) {
  const WeightMatrix w = weight_matrix("weight", weight, format);
  Dim K("in_features", w.k), N("out_features", w.n);
  check("x", x).last(K).floating().last_dim_contiguous().device(weight);
  LinearArgs args{};
  args.scale = finite("scale", scale);
  args.activation = single_activation(activation);
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

  const Kernel kernel = kernel_for(m, x, w, weight, batch_invariant);
  const int rows = kernel == Kernel::rows ? rows_together(m) : 0;
  const auto device = x.device();
  const bool matrices = kernel == Kernel::matrix, tensors = kernel == Kernel::tensors;
  const bool aligned = w.k % chunk == 0 && aligned_rows(x) && (w.format.packed() || aligned_rows(weight));
  Gemv gemv{rows ? linear_choice(device, w.format.index, rows, w.n, w.k) : LinearChoice{},
            Gemv::width_of(aligned, (rows || matrices) && in_words(w, weight)), rows};
  if (const auto way = rows ? multiplied_as_matrices(false, x, m, w, weight, aligned_rows(x)) : std::nullopt)
    gemv = *way;
  const int blocks = m <= 32 ? 4 : 8; // of eight rows, in a threadgroup, at most
  const std::optional<Ahead> ahead = matrices ? copied_ahead(x, m, w, weight, blocks) : std::nullopt;
  const auto named = [&](const char* file, const char* function) {
    return KernelKey(file, function, {w.format.policy, x.scalar_type()});
  };
  const KernelKey key = rows       ? gemv.name(named("linear.metal", "linear_rows").add({gemv.rows}))
                        : ahead    ? ahead->name(named("linear_matrix.metal", "linear_matrix_ahead"))
                        : matrices ? named("linear_matrix.metal", "linear_matrix").add({gemv.width, blocks})
                        : tensors  ? named("linear_tensors.metal", "linear_tensors").add({gemv.width})
                                   : named("linear.metal", "linear_tiles").add({gemv.width});
  args.rows = u32(m);
  args.n = u32(w.n);
  args.k = u32(w.k);
  args.row_blocks = u32(w.row_blocks);
  args.split = rows ? gemv.choice.split : ahead ? ahead->choice.split : matrices ? linear_matrix_split : 1;
  args.has_bias = bias.has_value();
  args.has_residual = residual.has_value();
  args.x = rows_of("x", x);
  if (residual) args.residual = rows_of("residual", *residual);
  const int64_t min_bytes =
      weight.nbytes() + x.nbytes() + y.nbytes() + (bias ? bias->nbytes() : 0) + (residual ? residual->nbytes() : 0);
  Launch launch(device, key);
  launch.weight(weight).in(x).in_or(bias, x).in_or(residual, x).out(y).args(args).min_bytes(min_bytes);
  if (ahead) {
    ahead->run(launch, m, w);
    return y;
  }
  if (matrices) {
    launch.tgmem(args.split * 8 * blocks * linear_matrix_outputs * sizeof(float));
    launch.run(tiles(m, w.n, 8 * blocks, linear_matrix_outputs, args.split * simd_width));
    return y;
  }
  if (tensors) {
    launch.run(tiles(m, w.n, linear_tensors_bm, linear_tensors_bn, linear_tensors_simdgroups * simd_width));
    return y;
  }
  if (!rows) {
    launch.run(tiles(m, w.n, linear_bm, linear_bn, linear_tile_threads));
    return y;
  }
  const LinearChoice& choice = gemv.choice;
  gemv.run(launch, w.n, choice.outputs, ceil_div(m, gemv.rows), choice.split > 1 ? choice.outputs * rows : 0);
  return y;
}

} // namespace

FOUNDRY_DIFFERENTIABLE_OP("linear(Tensor x, Tensor weight, str? format=None, Tensor? bias=None, "
                          "Tensor? residual=None, float scale=1.0, str? activation=None, "
                          "bool batch_invariant=False) -> Tensor",
                          "linear", linear, &linear_autograd)

} // namespace foundry
