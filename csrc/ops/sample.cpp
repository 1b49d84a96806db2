#include "sampling/sample.h"
#include "core/op.h"
#include "ops/layout.h"

namespace foundry {
namespace {

// The device state of a batch, which every step reads and writes.
struct State {
  const at::Tensor &params, &rules, &length, &finished, &errors, &ids, &newest;
  const OptionalTensor& counts;

  SampleArgs checked(const at::Tensor& like, Dim& batch, int64_t vocabulary) const {
    Dim V("vocabulary", vocabulary), C("capacity");
    const int64_t words = sizeof(SampleParams) / 4;
    const bool own_params = params.dim() != 1, own_rules = rules.dim() != 1; // a row each
    check("params", params).device(like).dtype({at::kInt}).contiguous();
    own_params ? check("params", params).shape({batch, words}) : check("params", params).shape({words});
    check("rules", rules).device(like).dtype({at::kByte}).contiguous();
    own_rules ? check("rules", rules).shape({batch, V}) : check("rules", rules).shape({V});
    check("length", length).device(like).dtype({at::kInt}).shape({batch}).contiguous();
    check("finished", finished).device(like).dtype({at::kInt}).shape({batch}).contiguous();
    check("errors", errors).device(like).dtype({at::kInt}).shape({batch}).contiguous();
    check("ids", ids).device(like).dtype({at::kLong}).shape({batch, C}).contiguous();
    check("newest", newest).device(like).dtype({at::kLong}).shape({batch, 1}).contiguous();
    if (counts) check("counts", *counts).device(like).dtype({at::kInt}).shape({batch, V}).contiguous();
    TORCH_CHECK(V.value() > 0 && V.value() <= sample_max_vocabulary, "logits: expected a vocabulary of 1 to ",
                sample_max_vocabulary, " tokens, got ", V.value());
    SampleArgs args{};
    args.n = u32(V);
    args.capacity = u32(C);
    args.own_params = own_params;
    args.own_rules = own_rules;
    return args;
  }
};

struct Flags {
  bool draw = false, rules = false, counts = false, bans = false, probs = false;

  // All constants of the file, whichever the kernel uses.
  KernelKey kernel(const char* function, std::initializer_list<KernelArgument> arguments = {}) const {
    return {"sample.metal",
            function,
            arguments,
            {{FC_SAMPLE_DRAW, draw},
             {FC_SAMPLE_RULES, rules},
             {FC_SAMPLE_COUNTS, counts},
             {FC_SAMPLE_BANS, bans},
             {FC_SAMPLE_PROBS, probs}}};
  }
};

void merge(const at::Tensor& parts, const State& state, const SampleArgs& args, int64_t rows) {
  Launch launch(parts.device(), Flags{.counts = state.counts.has_value()}.kernel("sample_greedy"));
  launch.in(parts).in(state.params).in(state.rules);
  launch.inout(state.counts)
      .inout(state.length)
      .inout(state.finished)
      .inout(state.errors)
      .inout(state.ids)
      .out(state.newest)
      .args(args);
  launch.min_bytes(rows * args.parts * int64_t(sizeof(SamplePart)));
  launch.run(per_row(rows, simd_width * std::min(ceil_div(args.parts, simd_width), 8u)));
}

void ban(const at::Tensor& sequences, const at::Tensor& banned, const State& state, const SampleArgs& args,
         int64_t rows) {
  Launch launch(banned.device(), Flags{}.kernel("sample_bans"));
  launch.in(state.ids).in(state.length).in(state.params).in(sequences).inout(banned).args(args);
  launch.min_bytes(state.ids.numel() * 8).run(per_row(rows, 256));
}

void sample(const at::Tensor& logits, const at::Tensor& params, const at::Tensor& rules,
            const OptionalTensor& sequences, const OptionalTensor& counts, const OptionalTensor& banned,
            const at::Tensor& start, const at::Tensor& streams, const at::Tensor& length, const at::Tensor& finished,
            const at::Tensor& errors, const at::Tensor& ids, const at::Tensor& newest, const OptionalTensor& probs,
            bool use_rules, bool draw, bool truncate) {
  Dim B("batch"), V("vocabulary");
  check("logits", logits).floating().shape({B, V}).last_dim_contiguous();
  const State state{params, rules, length, finished, errors, ids, newest, counts};
  SampleArgs args = state.checked(logits, B, V);
  check("start", start).device(logits).dtype({at::kInt}).shape({B}).contiguous();
  check("streams", streams).device(logits).dtype({at::kLong}).shape({B}).contiguous();
  TORCH_CHECK(sequences.has_value() == banned.has_value(), "banned: expected both sequences and banned, or neither");
  if (banned) {
    check("sequences", *sequences).device(logits).dtype({at::kInt}).dim(1).contiguous();
    check("banned", *banned).device(logits).dtype({at::kInt}).shape({B, V}).contiguous();
  }
  TORCH_CHECK(!probs || draw, "probs: expected None without a draw");
  if (probs) check("probs", *probs).device(logits).dtype({at::kFloat}).shape({B, V}).contiguous();
  if (B == 0) return;

  const int64_t rows = B, n = V;
  args.parts = ceil_div(n, sample_tile);
  args.logits = rows_of("logits", logits);
  if (banned) ban(*sequences, *banned, state, args, rows);

  const at::Tensor parts = at::empty({rows, args.parts, 2}, logits.options().dtype(at::kInt));
  OptionalTensor scores;
  if (draw) scores = at::empty({rows, n}, logits.options().dtype(at::kFloat));
  {
    const Flags flags{draw, use_rules, counts.has_value(), banned.has_value()};
    Launch launch(logits.device(), flags.kernel("sample_scores", {logits.scalar_type()}));
    launch.in(logits).out(parts);
    launch.out(scores).in(params).in(length).in(rules).in(counts).in(banned);
    const uint32_t simdgroups = std::min(args.parts, sample_tiles_per_group);
    const int64_t read = logits.itemsize() + 4 * (counts.has_value() + banned.has_value());
    launch.args(args).min_bytes(rows * (n * (read + 4 * draw) + args.parts * int64_t(sizeof(SamplePart))) +
                                use_rules * n);
    launch.run(per_row(rows, simd_width * simdgroups, ceil_div(args.parts, simdgroups)));
  }
  if (!draw) return merge(parts, state, args, rows);

  const Flags flags{.draw = true, .counts = counts.has_value(), .probs = probs.has_value()};
  Launch launch(logits.device(), flags.kernel("sample_draw", {truncate}));
  launch.in(parts).in(scores).in(params).in(rules);
  launch.inout(counts).inout(length).in(start).in(streams).inout(finished).inout(errors).inout(ids).out(newest).out(
      probs);
  launch.args(args).min_bytes(rows * (args.parts * int64_t(sizeof(SamplePart)) + sample_tile * 4));
  launch.run(per_row(rows, simd_width * std::min(args.parts, sample_draw_simdgroups)));
}

void sample_count_prompt(const at::Tensor& ids, const at::Tensor& first, int64_t prompt, const at::Tensor& counts) {
  Dim B("batch"), C("capacity"), V("vocabulary");
  check("ids", ids).dtype({at::kLong}).shape({B, C}).contiguous();
  check("first", first).device(ids).dtype({at::kInt}).shape({B}).contiguous();
  check("counts", counts).device(ids).dtype({at::kInt}).shape({B, V}).contiguous();
  TORCH_CHECK(prompt >= 0 && prompt <= C, "prompt: expected at most ", C.value(), " tokens, got ", prompt);
  if (B == 0 || prompt == 0) return;
  SampleArgs args{};
  args.n = u32(V);
  args.capacity = u32(C);
  Launch launch(ids.device(), Flags{}.kernel("sample_count_prompt"));
  launch.in(ids).in(first).inout(counts).args(args).min_bytes(B * prompt * 12);
  launch.run(per_element(prompt, 64, B));
}

} // namespace

FOUNDRY_OP("sample(Tensor logits, Tensor params, Tensor rules, Tensor? sequences, Tensor(a!)? counts, "
           "Tensor(b!)? banned, Tensor start, Tensor streams, Tensor(c!) length, Tensor(d!) finished, "
           "Tensor(e!) errors, Tensor(f!) ids, Tensor(g!) newest, Tensor(h!)? probs, bool use_rules, bool draw, "
           "bool truncate) -> ()",
           "sample", sample)
FOUNDRY_OP("sample_count_prompt(Tensor ids, Tensor first, SymInt prompt, Tensor(a!) counts) -> ()",
           "sample_count_prompt", sample_count_prompt)

} // namespace foundry
