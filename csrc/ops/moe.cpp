// A mixture of experts for few tokens: shaders/moe/moe.metal.
#include "ops/experts.h"

#include <bit>

#include "ops/gemv.h"

namespace foundry {

namespace {

at::Tensor first_of(const char* name, const at::Tensor& weight, const at::Tensor& like) {
  check(name, weight).dim(3).last_dim_contiguous().device(like);
  TORCH_CHECK(weight.size(0) > 0 && weight.size(0) <= moe_max_experts, name, ": expected 1 to ", moe_max_experts,
              " experts, got ", weight.sizes());
  return weight.select(0, 0);
}

} // namespace

ExpertMatrices::ExpertMatrices(const char* name, const at::Tensor& weight, OptionalName format, const at::Tensor& like)
    : one(weight_matrix(name, first_of(name, weight, like), format)), experts(weight.size(0)),
      bytes_of_one(one.n * weight.size(2) * weight.itemsize()), aligned(one.format.packed() || aligned_rows(weight)),
      words(in_words(one, weight.select(0, 0)) && weight.stride(0) % one.format.word == 0) {
  const int64_t unit = one.format.packed() ? one.format.block_bytes : 1;
  TORCH_CHECK(weight.stride(0) % unit == 0, name, ": expected experts of whole blocks of ", unit,
              " bytes, got strides ", weight.strides());
  TORCH_CHECK(one.n > 0 && one.k > 0, name, ": expected at least one output and one input, got ", weight.sizes());
  expert_blocks = weight.stride(0) / unit;
}

RoutedArgs routed_args(const at::Tensor& ids, int64_t experts) {
  check("ids", ids).dtype({at::kInt}).dim(2).last_dim_contiguous();
  TORCH_CHECK(ids.size(1) > 0 && ids.size(1) <= moe_max_chosen, "ids: expected 1 to ", moe_max_chosen,
              " experts of a token, got ", ids.sizes());
  RoutedArgs args{};
  args.experts = u32(experts);
  args.chosen = u32(ids.size(1));
  args.ids_stride = u32(ids.stride(0));
  return args;
}

RoutedArgs routed_args(const at::Tensor& ids, const ExpertMatrices& first, const ExpertMatrices* second) {
  RoutedArgs args = routed_args(ids, first.experts);
  args.expert_blocks[0] = u32(first.expert_blocks);
  args.expert_blocks[1] = u32(second ? second->expert_blocks : 0);
  return args;
}

void check_shared(const char* name, const at::Tensor& shared, const ExpertMatrices& others, const at::Tensor& like) {
  check(name, shared).last_dim_contiguous().device(like);
  const WeightMatrix own = weight_matrix(name, shared, others.one.format.name);
  TORCH_CHECK(own.n == others.one.n && own.k == others.one.k && own.row_blocks == others.one.row_blocks, name,
              ": expected one matrix as those of the experts, ", others.one.n, " x ", others.one.k, ", got ",
              shared.sizes());
}

ExpertBias expert_bias(const char* name, const OptionalTensor& bias, const ExpertMatrices& of, const at::Tensor& like) {
  if (!bias) return {};
  Dim E("experts", of.experts), N("out_features", of.one.n);
  check(name, *bias).like(like).shape({E, N});
  return {1, u32(bias->stride(0)), u32(bias->stride(1))};
}

void check_weights(const at::Tensor& weights, const at::Tensor& ids, RoutedArgs& args) {
  check("weights", weights).dtype({at::kFloat}).device(ids).last_dim_contiguous();
  check_same_shape("weights", weights, "ids", ids);
  args.weights_stride = u32(weights.stride(0));
}

namespace {

struct Score {
  const char* name;
  bool sigmoid, in_turn;
};
constexpr Score kScores[] = {{"softmax", false, false}, {"sigmoid", true, false}, {"in_turn", false, true}};

Norm norm_of(const at::Tensor& x, const at::Tensor& norm_weight, double eps, std::string_view kind) {
  Dim K("in_features", x.size(-1));
  check("norm_weight", norm_weight).like(x).shape({K}).contiguous();
  return Norm(kind, eps);
}

void set_norm(NormedArgs& args, const Norm& norm) {
  args.eps = norm.eps;
  args.offset = norm.kind.offset;
}

KernelKey kernel(const char* function, const QuantFormat& format, at::ScalarType dtype, const Gemv& gemv) {
  return gemv.name({"moe.metal", function, {format.policy, dtype}});
}

ChoiceArgs choice_args(int64_t experts, int64_t k, bool shared, bool normalize, std::string_view score,
                       const OptionalTensor& correction, bool correct_logits, int64_t groups, int64_t top_groups,
                       int64_t group_best, double scale, double least_sum, double near, double shared_weight,
                       const at::Tensor& like) {
  TORCH_CHECK(experts > 0 && experts <= moe_max_experts, "experts: expected 1 to ", moe_max_experts, ", got ", experts);
  TORCH_CHECK(k > 0 && k <= experts && k <= moe_max_chosen, "k: expected 1 to ",
              std::min<int64_t>(experts, moe_max_chosen), " experts of a token, got ", k);
  Dim E("experts", experts);
  if (correction) check("correction", *correction).floating().device(like).shape({E}).contiguous();
  TORCH_CHECK(group_best == 1 || group_best == 2, "group_best: expected 1 or 2, got ", group_best);
  TORCH_CHECK(groups == 1 ||
                  (groups > 1 && groups <= moe_max_groups && experts % groups == 0 && experts / groups >= group_best),
              "groups: expected 1 to ", moe_max_groups, " of as many of ", experts, " experts each, ", group_best,
              " or more, got ", groups);
  TORCH_CHECK(top_groups > 0 && top_groups <= groups && k <= top_groups * (experts / groups),
              "top_groups: expected 1 to ", groups, " with at least ", k, " experts, got ", top_groups);
  ChoiceArgs args{};
  args.experts = u32(experts);
  args.chosen = u32(k);
  args.shared_weight = finite("shared_weight", shared_weight);
  TORCH_CHECK(!shared || args.shared_weight == 0, "shared_weight: expected none beside shared, got ", shared_weight);
  args.has_shared = shared || args.shared_weight != 0;
  args.normalize = normalize;
  const Score& by = named("score", score, kScores);
  TORCH_CHECK(!by.in_turn || (!correction && groups == 1), "score in_turn: expected no correction and one group");
  args.sigmoid = by.sigmoid;
  args.in_turn = by.in_turn;
  args.near = finite("near", near);
  TORCH_CHECK(args.near >= 0, "near: expected 0 or more, got ", near);
  args.has_correction = correction.has_value();
  args.by_logit = correct_logits || (!correction && groups == 1); // scores are in the same order
  args.groups = u32(groups);
  args.top_groups = u32(top_groups);
  args.group_best = u32(group_best);
  args.scale = finite("scale", scale);
  args.least_sum = finite("least_sum", least_sum);
  return args;
}

// ids and weights of rows of logits [tokens, experts] and, of a shared expert, [tokens, 1].
std::tuple<at::Tensor, at::Tensor> chosen(const at::Tensor& logits, const OptionalTensor& shared,
                                          const OptionalTensor& correction, ChoiceArgs args) {
  const std::vector<int64_t> shape = {logits.size(0), args.chosen + args.has_shared};
  at::Tensor ids = at::empty(shape, logits.options().dtype(at::kInt));
  at::Tensor weights = at::empty(shape, logits.options().dtype(at::kFloat));
  if (logits.size(0) == 0) return {ids, weights};
  args.logits_stride = u32(logits.stride(0));
  args.shared_stride = shared ? u32(shared->stride(0)) : 0;
  const at::ScalarType corrected = correction.value_or(logits).scalar_type();
  Launch launch(logits.device(), {"moe.metal", "moe_choose", {logits.scalar_type(), corrected}});
  launch.in(logits).in_or(shared, logits).in_or(correction, logits).out(ids).out(weights).args(args);
  launch.tgmem(args.experts * sizeof(uint32_t)).run(per_row(logits.size(0), simd_width));
  return {ids, weights};
}

std::tuple<at::Tensor, at::Tensor>
moe_route(const at::Tensor& x, const at::Tensor& norm_weight, double eps, std::string_view kind,
          const at::Tensor& weight, const OptionalTensor& shared, int64_t k, bool normalize, const OptionalTensor& bias,
          std::string_view score, const OptionalTensor& correction, bool correct_logits, int64_t groups,
          int64_t top_groups, int64_t group_best, double scale, double least_sum, double near, double shared_weight) {
  Dim K("in_features");
  check("x", x).floating().last(K).contiguous();
  const Norm norm = norm_of(x, norm_weight, eps, kind);
  const WeightMatrix w = weight_matrix("weight", weight, std::nullopt);
  check("weight", weight).device(x).last(K);
  Dim E("experts", w.n);
  if (shared) check("shared", *shared).like(weight).shape({1, K}).contiguous();
  if (bias) check("bias", *bias).like(x).shape({E}).contiguous();
  const ChoiceArgs choice = choice_args(w.n, k, shared.has_value(), normalize, score, correction, correct_logits,
                                        groups, top_groups, group_best, scale, least_sum, near, shared_weight, x);
  const int64_t tokens = K > 0 ? x.numel() / K : 0, rows = w.n + shared.has_value();
  const at::Tensor all = at::empty({tokens, rows}, x.options().dtype(at::kFloat)), logits = all.narrow(1, 0, w.n);
  const OptionalTensor of_shared = shared ? OptionalTensor(all.narrow(1, w.n, 1)) : std::nullopt;
  if (tokens > 0) {
    const bool aligned = K % chunk == 0 && aligned_rows(x) && aligned_rows(norm_weight) && aligned_rows(weight) &&
                         (!shared || aligned_rows(*shared));
    const Gemv gemv{norm_linear_choice(x.device(), w.format.index, 1, rows, K), Gemv::width_of(aligned, false)};
    NormedArgs args{};
    args.rows = u32(tokens);
    args.k = u32(K);
    args.n[0] = u32(w.n);
    args.n[1] = shared.has_value();
    args.has_bias = bias.has_value();
    args.row_blocks[0] = u32(w.row_blocks);
    args.split = gemv.choice.split;
    set_norm(args, norm);
    Launch launch(x.device(), kernel("moe_logits", w.format, x.scalar_type(), gemv));
    launch.in(x).in(norm_weight).in(weight).in_or(shared, weight).in_or(bias, x).out(all).args(args);
    launch.min_bytes(weight.nbytes() + (shared ? shared->nbytes() : 0) + x.nbytes() + all.nbytes());
    gemv.run(launch, rows, gemv.choice.outputs, tokens, normed_sums(1, gemv.choice.outputs));
  }
  return chosen(logits, of_shared, correction, choice);
}

std::tuple<at::Tensor, at::Tensor> moe_choose(const at::Tensor& logits, const OptionalTensor& shared, int64_t k,
                                              bool normalize, std::string_view score, const OptionalTensor& correction,
                                              bool correct_logits, int64_t groups, int64_t top_groups,
                                              int64_t group_best, double scale, double least_sum, double near,
                                              double shared_weight) {
  Dim T("tokens"), E("experts");
  check("logits", logits).floating().shape({T, E}).contiguous();
  if (shared) check("shared", *shared).like(logits).shape({T, 1}).contiguous();
  const ChoiceArgs args = choice_args(E, k, shared.has_value(), normalize, score, correction, correct_logits, groups,
                                      top_groups, group_best, scale, least_sum, near, shared_weight, logits);
  return chosen(logits, shared, correction, args);
}

at::Tensor moe_glu(const at::Tensor& x, const OptionalTensor& norm_weight, double eps, std::string_view kind,
                   const at::Tensor& ids, const OptionalTensor& gate, const at::Tensor& up, OptionalName format,
                   std::string_view activation, const OptionalTensor& gate_bias, const OptionalTensor& up_bias,
                   const OptionalTensor& shared_gate, const OptionalTensor& shared_up) {
  const bool gated = gate.has_value();
  const at::Tensor& first = gate.value_or(up); // without a gate, up's matrices are named twice and read once
  const ExpertMatrices g(gated ? "gate" : "up", first, format, x), u("up", up, format, x);
  TORCH_CHECK(g.experts == u.experts && g.one.n == u.one.n && g.one.k == u.one.k && &g.one.format == &u.one.format,
              "up: expected the shape and format of gate, ", first.sizes(), ", got ", up.sizes());
  Dim T("tokens"), K("in_features", g.one.k);
  check("x", x).floating().shape({T, K}).contiguous();
  MoeGluArgs args{};
  if (norm_weight) set_norm(args.normed, norm_of(x, *norm_weight, eps, kind));
  args.routed = routed_args(ids, g, &u);
  check("ids", ids).device(x).shape({T, int64_t(args.routed.chosen)});
  args.routed.has_shared = shared_up.has_value();
  TORCH_CHECK(shared_gate.has_value() == (gated && shared_up),
              "shared_gate: expected one if there are gate and shared_up");
  TORCH_CHECK(!shared_up || (!gate_bias && !up_bias), "shared_up: expected no biases beside it");
  if (shared_gate) check_shared("shared_gate", *shared_gate, g, x);
  if (shared_up) check_shared("shared_up", *shared_up, u, x);
  args.activation = gated ? activation_named(activation).code : single_activation(activation);
  TORCH_CHECK(gated || !gate_bias, "gate_bias: expected none without a gate");
  args.bias[0] = expert_bias("gate_bias", gate_bias, g, x);
  args.bias[1] = expert_bias("up_bias", up_bias, u, x);
  const int64_t pairs = T * args.routed.chosen, n = g.one.n;
  check_output_size(pairs, n);
  at::Tensor y = at::empty({T, int64_t(args.routed.chosen), n}, x.options());
  if (y.numel() == 0) return y;

  const bool aligned =
      K % chunk == 0 && aligned_rows(x) && (!norm_weight || aligned_rows(*norm_weight)) && g.aligned && u.aligned &&
      (!shared_up || g.one.format.packed() || (aligned_rows(*shared_up) && (!gated || aligned_rows(*shared_gate))));
  const bool words = g.words && u.words && (!shared_gate || in_words(g.one, *shared_gate)) &&
                     (!shared_up || in_words(u.one, *shared_up));
  LinearChoice choice = moe_glu_choice(x.device(), g.one.format.index, (1 + gated) * n, K);
  if (gated && choice.outputs < 2) choice.outputs = 2;
  const Gemv gemv{choice, Gemv::width_of(aligned, words)};
  args.normed.rows = u32(T);
  args.normed.k = u32(K);
  args.normed.n[0] = u32(n);
  args.normed.row_blocks[0] = u32(g.one.row_blocks);
  args.normed.row_blocks[1] = u32(u.one.row_blocks);
  args.normed.split = choice.split;
  Launch launch(x.device(),
                kernel("moe_glu", g.one.format, x.scalar_type(), gemv).add({norm_weight.has_value(), gated}));
  launch.in(x).in_or(norm_weight, x).in(ids).in(first).in(up).in_or(shared_gate, first).in_or(shared_up, up);
  launch.in_or(gate_bias, x).in_or(up_bias, x);
  launch.out(y).args(args);
  launch.min_bytes(experts_read(g.experts, pairs) * (gated * g.bytes_of_one + u.bytes_of_one) + x.nbytes() +
                   y.nbytes() + (norm_weight ? norm_weight->nbytes() : 0) + ids.nbytes());
  gemv.run(launch, n, choice.outputs / (1 + gated), pairs, normed_sums(1, choice.outputs));
  return y;
}

at::Tensor moe_down(const at::Tensor& x, const at::Tensor& ids, const at::Tensor& weights, const at::Tensor& weight,
                    OptionalName format, const OptionalTensor& residual, double scale, const OptionalTensor& bias,
                    const OptionalTensor& shared) {
  const ExpertMatrices w("weight", weight, format, x);
  MoeDownArgs args{};
  args.routed = routed_args(ids, w);
  check_weights(weights, ids, args.routed);
  Dim T("tokens", ids.size(0)), K("in_features", w.one.k), N("out_features", w.one.n);
  check("x", x).floating().device(ids).shape({T, int64_t(args.routed.chosen), K}).contiguous();
  args.scale = finite("scale", scale);
  args.bias = expert_bias("bias", bias, w, x);
  args.routed.has_shared = shared.has_value();
  TORCH_CHECK(!shared || !bias, "shared: expected no bias beside it");
  if (shared) check_shared("shared", *shared, w, ids);
  if (residual) check("residual", *residual).like(x).shape({T, N}).contiguous();
  check_output_size(T, N);
  at::Tensor y = at::empty({T, w.one.n}, x.options());
  if (y.numel() == 0) return y;

  const int format_index = w.one.format.index;
  const LinearChoice choice = args.routed.chosen > 1 ? moe_down_choice(x.device(), format_index, N, K)
                                                     : linear_choice(x.device(), format_index, 1, N, K);
  const bool aligned =
      K % chunk == 0 && aligned_rows(x) && w.aligned && (!shared || w.one.format.packed() || aligned_rows(*shared));
  const Gemv gemv{choice, Gemv::width_of(aligned, w.words && (!shared || in_words(w.one, *shared)))};
  args.n = u32(N);
  args.k = u32(K);
  args.row_blocks = u32(w.one.row_blocks);
  args.split = choice.split;
  args.share = std::max(1u, std::bit_floor(choice.split / args.routed.chosen));
  args.has_residual = residual.has_value();
  Launch launch(x.device(), kernel("moe_down", w.one.format, x.scalar_type(), gemv));
  launch.in(x).in(ids).in(weights).in(weight).in_or(shared, weight).in_or(bias, x).in_or(residual, x).out(y).args(args);
  launch.min_bytes(experts_read(w.experts, ids.numel()) * w.bytes_of_one + x.nbytes() + y.nbytes() +
                   (residual ? residual->nbytes() : 0) + ids.nbytes() + weights.nbytes());
  gemv.run(launch, N, choice.outputs, T, choice.outputs);
  return y;
}

} // namespace

FOUNDRY_OP("moe_route(Tensor x, Tensor norm_weight, float eps, str kind, Tensor weight, Tensor? shared, int k, "
           "bool normalize, Tensor? bias=None, str score='softmax', Tensor? correction=None, "
           "bool correct_logits=False, int groups=1, int top_groups=1, int group_best=2, float scale=1.0, "
           "float least_sum=1e-20, float near=0.0, float shared_weight=0.0) -> (Tensor, Tensor)",
           "moe_route", moe_route)
FOUNDRY_OP("moe_choose(Tensor logits, Tensor? shared, int k, bool normalize, str score='softmax', "
           "Tensor? correction=None, bool correct_logits=False, int groups=1, int top_groups=1, int group_best=2, "
           "float scale=1.0, float least_sum=1e-20, float near=0.0, float shared_weight=0.0) -> (Tensor, Tensor)",
           "moe_choose", moe_choose)
FOUNDRY_OP("moe_glu(Tensor x, Tensor? norm_weight, float eps, str kind, Tensor ids, Tensor? gate, Tensor up, "
           "str? format, str activation, Tensor? gate_bias=None, Tensor? up_bias=None, "
           "Tensor? shared_gate=None, Tensor? shared_up=None) -> Tensor",
           "moe_glu", moe_glu)
FOUNDRY_OP("moe_down(Tensor x, Tensor ids, Tensor weights, Tensor weight, str? format=None, Tensor? residual=None, "
           "float scale=1.0, Tensor? bias=None, Tensor? shared=None) -> Tensor",
           "moe_down", moe_down)

} // namespace foundry
