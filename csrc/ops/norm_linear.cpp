// RMSNorm and the projections after it in one launch, for the few tokens of a decode step:
// shaders/linear/norm_linear.metal.
#include "linear/norm_linear.h"

#include "core/op.h"
#include "core/quant_table.h"
#include "ops/gemv.h"
#include "ops/heads.h"
#include "ops/limits.h"
#include "quant/format.h"

namespace foundry {
namespace {

using Formats = c10::List<std::string>;
using Biases = c10::List<OptionalTensor>;

// The norm before the projections, if any, and those: matrices of the same width, each in its own format.
struct Projections {
  at::Tensor x;
  OptionalTensor norm_weight;
  std::optional<Norm> norm;
  std::vector<at::Tensor> weights;
  std::vector<OptionalTensor> biases;
  std::vector<WeightMatrix> matrices;
  int64_t rows, k;

  Projections(const at::Tensor& x, const OptionalTensor& norm_weight, double eps, std::string_view kind,
              at::TensorList weights, const Formats& formats, const Biases& biases, size_t least, size_t most)
      : x(x), norm_weight(norm_weight), weights(weights.vec()) {
    Dim K("in_features");
    check("x", x).floating().last(K).contiguous();
    k = K;
    if (norm_weight) {
      check("norm_weight", *norm_weight).like(x).shape({K}).contiguous();
      norm.emplace(kind, eps);
    }
    TORCH_CHECK(weights.size() >= least && weights.size() <= most, "weights: expected ", least, " to ", most,
                " matrices, got ", weights.size());
    TORCH_CHECK(formats.size() == weights.size() && biases.size() == weights.size(),
                "formats: expected a format and a bias (or none) for each of ", weights.size(), " weights, got ",
                formats.size(), " and ", biases.size());
    for (size_t i = 0; i < weights.size(); i++) {
      const std::string format = formats.get(i);
      matrices.push_back(weight_matrix("weights", weights[i], format.empty() ? std::nullopt : OptionalName(format)));
      check("weights", weights[i]).device(x);
      TORCH_CHECK(matrices[i].k == k, "weights: expected in_features=", k, ", got ", matrices[i].k, " in the one at ",
                  i);
      this->biases.push_back(biases.get(i));
      Dim N("out_features", matrices[i].n);
      if (this->biases[i]) check("biases", *this->biases[i]).like(x).shape({N}).contiguous();
    }
    TORCH_CHECK(k > 0, "x: expected at least one feature, got ", x.sizes());
    rows = x.numel() / k;
  }

  int64_t outputs(size_t first, size_t end) const {
    int64_t n = 0;
    for (size_t i = first; i < end; i++) n += matrices[i].n;
    return n;
  }

  // Calls launch(first, end) for each run of neighbouring matrices of one format.
  template <class F> void each_run(F&& launch) const {
    for (size_t first = 0, end; first < matrices.size(); first = end) {
      for (end = first + 1; end < matrices.size() && &matrices[end].format == &matrices[first].format;) end++;
      launch(first, end);
    }
  }
};

// How the matrices from `first` to `end`, of one format, are multiplied. in_pairs: for pairs of outputs.
Gemv gemv_of(const Projections& p, size_t first, size_t end, bool in_pairs) {
  const QuantFormat& format = p.matrices[first].format;
  const int rows = rows_together(p.rows);
  bool aligned = p.k % chunk == 0 && aligned_rows(p.x) && (!p.norm || aligned_rows(*p.norm_weight)), words = true;
  const auto run_of = [&](const auto& all) { return c10::ArrayRef(all).slice(first, end - first); };
  if (const auto way =
          multiplied_as_matrices(p.norm.has_value(), p.x, p.rows, run_of(p.matrices), run_of(p.weights), aligned))
    return *way;
  for (size_t i = first; i < end; i++) {
    aligned = aligned && (format.packed() || aligned_rows(p.weights[i]));
    words = words && in_words(p.matrices[i], p.weights[i]);
  }
  LinearChoice choice = norm_linear_choice(p.x.device(), format.index, rows, p.outputs(first, end), p.k);
  if (in_pairs && choice.outputs < 2) choice.outputs = 2;
  while (rows * choice.outputs > int(simd_width)) choice.outputs /= 2;
  return {choice, Gemv::width_of(aligned, words), rows};
}

KernelKey kernel(const char* function, const Projections& p, size_t first, const Gemv& gemv,
                 std::optional<at::ScalarType> table = std::nullopt) {
  KernelKey key("norm_linear.metal", function, {p.matrices[first].format.policy, p.x.scalar_type()},
                {{FC_NORM_LINEAR_NORM, p.norm.has_value()}});
  if (table) key.add({*table});
  return gemv.name(key.add({gemv.rows}));
}

// `units`: outputs, or pairs of them.
void run(Launch& launch, const Gemv& gemv, int64_t units, bool in_pairs, int64_t rows) {
  const int each = gemv.choice.outputs / (in_pairs ? 2 : 1);
  gemv.run(launch, units, each, ceil_div(rows, gemv.rows), normed_sums(gemv.rows, gemv.choice.outputs));
}

// Binds x, the norm's weight, and `count` weights and biases; those of other formats are not read, others stand in for
// them.
NormedArgs bind(Launch& launch, const Projections& p, const Gemv& gemv, size_t first, size_t end, size_t count) {
  NormedArgs args{};
  args.rows = u32(p.rows);
  args.k = u32(p.k);
  args.split = gemv.choice.split;
  if (p.norm) args.eps = p.norm->eps, args.offset = p.norm->kind.offset;
  launch.in(p.x).in(p.norm_weight);
  for (size_t i = 0; i < count; i++) {
    const bool used = i >= first && i < end;
    used ? launch.weight(p.weights[i]) : launch.in(p.weights[first]);
    if (i < p.matrices.size()) args.n[i] = u32(p.matrices[i].n);
    if (used) args.row_blocks[i] = u32(p.matrices[i].row_blocks);
  }
  for (size_t i = 0; i < count; i++) {
    const bool used = i >= first && i < end && p.biases[i];
    launch.in(used ? *p.biases[i] : p.x);
    if (used) args.has_bias |= 1u << i;
  }
  return args;
}

int64_t bytes_of(const Projections& p, size_t first, size_t end) {
  int64_t bytes = p.x.nbytes() + (p.norm ? p.norm_weight->nbytes() : 0);
  for (size_t i = first; i < end; i++) {
    bytes +=
        p.weights[i].nbytes() + (p.biases[i] ? p.biases[i]->nbytes() : 0) + p.rows * p.matrices[i].n * p.x.itemsize();
  }
  return bytes;
}

at::Tensor norm_linear(const at::Tensor& x, const OptionalTensor& norm_weight, double eps, std::string_view kind,
                       at::TensorList weights, const Formats& formats, const Biases& biases) {
  const Projections p(x, norm_weight, eps, kind, weights, formats, biases, 1, norm_linear_matrices);
  std::vector<int64_t> shape = x.sizes().vec();
  const int64_t total = shape.back() = p.outputs(0, weights.size());
  check_output_size(p.rows, total);
  at::Tensor y = at::empty(shape, x.options());
  if (y.numel() == 0) return y;
  p.each_run([&](size_t first, size_t end) {
    const Gemv gemv = gemv_of(p, first, end, false);
    Launch launch(x.device(), kernel("norm_linear", p, first, gemv));
    NormLinearArgs args{};
    args.normed = bind(launch, p, gemv, first, end, norm_linear_matrices);
    args.outputs = u32(total);
    args.first = u32(p.outputs(0, first));
    args.end = u32(p.outputs(0, end));
    launch.out(y).args(args).min_bytes(bytes_of(p, first, end));
    run(launch, gemv, args.end - args.first, false, p.rows);
  });
  return y;
}

at::Tensor norm_glu(const at::Tensor& x, const OptionalTensor& norm_weight, double eps, std::string_view kind,
                    at::TensorList weights, const Formats& formats, const Biases& biases, std::string_view activation,
                    double gate_scale) {
  const Projections p(x, norm_weight, eps, kind, weights, formats, biases, 2, 2);
  TORCH_CHECK(p.matrices[0].n == p.matrices[1].n && &p.matrices[0].format == &p.matrices[1].format,
              "weights: expected gate and up of the same shape and format");
  std::vector<int64_t> shape = x.sizes().vec();
  const int64_t n = shape.back() = p.matrices[0].n;
  check_output_size(p.rows, n);
  NormGluArgs args{};
  args.activation = activation_named(activation).code;
  args.gate_scale = finite("gate_scale", gate_scale);
  at::Tensor y = at::empty(shape, x.options());
  if (y.numel() == 0) return y;
  const Gemv gemv = gemv_of(p, 0, 2, true);
  Launch launch(x.device(), kernel("norm_glu", p, 0, gemv));
  args.normed = bind(launch, p, gemv, 0, 2, 2);
  launch.out(y).args(args).min_bytes(bytes_of(p, 0, 2) - y.nbytes());
  run(launch, gemv, n, true, p.rows);
  return y;
}

at::Tensor norm_qkv(const at::Tensor& x, const OptionalTensor& norm_weight, double eps, std::string_view kind,
                    at::TensorList weights, const Formats& formats, const Biases& biases, const OptionalTensor& cos,
                    const OptionalTensor& sin, const at::Tensor& k_cache, const at::Tensor& v_cache, int64_t start,
                    int64_t head_dim, const OptionalTensor& positions, const OptionalTensor& step, bool interleaved) {
  const Projections p(x, norm_weight, eps, kind, weights, formats, biases, 3, 3);
  check("x", x).dim(3);
  TORCH_CHECK(head_dim > 0 && head_dim % 2 == 0, "head_dim: expected a positive even number, got ", head_dim);
  const int64_t batch = x.size(0), tokens = x.size(1), n_heads = p.matrices[0].n / head_dim,
                n_kv_heads = p.matrices[1].n / head_dim;
  TORCH_CHECK(p.matrices[0].n % head_dim == 0 && p.matrices[1].n % head_dim == 0 && p.matrices[2].n == p.matrices[1].n,
              "weights: expected heads * ", head_dim, ", kv_heads * ", head_dim, " and as many rows, got ",
              p.matrices[0].n, ", ", p.matrices[1].n, " and ", p.matrices[2].n);
  HeadsTo to{cos, sin, positions, k_cache, v_cache, start, step};
  to.interleaved = interleaved;
  check("k_cache", k_cache).like(x);
  check("v_cache", v_cache).like(x);
  NormQkvArgs args{};
  args.heads = heads_args(x, batch, tokens, n_heads, n_kv_heads, head_dim, to);
  TORCH_CHECK(args.heads.value_dim == head_dim, "v_cache: expected a head_dim of ", head_dim, ", got ",
              v_cache.sizes());
  at::Tensor q_out = at::empty({batch, n_heads, tokens, head_dim}, x.options());
  if (p.rows == 0) return q_out;
  p.each_run([&](size_t first, size_t end) {
    const Gemv gemv = gemv_of(p, first, end, true);
    Launch launch(x.device(), kernel("norm_qkv", p, first, gemv, to.table_type(x.scalar_type())));
    args.normed = bind(launch, p, gemv, first, end, 3);
    args.first_pair = u32(p.outputs(0, first) / 2);
    args.end_pair = u32(p.outputs(0, end) / 2);
    launch.in_or(cos, x).in_or(sin, x).in_or(positions, x).in_or(step, x).inout(k_cache).inout(v_cache).out(q_out);
    launch.args(args).min_bytes(bytes_of(p, first, end));
    run(launch, gemv, args.end_pair - args.first_pair, true, p.rows);
  });
  return q_out;
}

} // namespace

FOUNDRY_OP("norm_linear(Tensor x, Tensor? norm_weight, float eps, str kind, Tensor[] weights, str[] formats, "
           "Tensor?[] biases) -> Tensor",
           "norm_linear", norm_linear)
FOUNDRY_OP("norm_glu(Tensor x, Tensor? norm_weight, float eps, str kind, Tensor[] weights, str[] formats, "
           "Tensor?[] biases, str activation, float gate_scale=1.0) -> Tensor",
           "norm_glu", norm_glu)
FOUNDRY_OP("norm_qkv(Tensor x, Tensor? norm_weight, float eps, str kind, Tensor[] weights, str[] formats, "
           "Tensor?[] biases, Tensor? cos, Tensor? sin, Tensor(a!) k_cache, Tensor(b!) v_cache, SymInt start, "
           "SymInt head_dim, Tensor? positions=None, Tensor? step=None, bool interleaved=False) -> Tensor",
           "norm_qkv", norm_qkv)

} // namespace foundry
