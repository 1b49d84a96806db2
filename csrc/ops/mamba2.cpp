#include "mixers/mamba2.h"

#include <limits>

#include "core/op.h"
#include "mixers/chunks.h"
#include "ops/options.h"
#include "ops/slots.h"

namespace foundry {
namespace {

at::Tensor mamba2(const at::Tensor& x, const at::Tensor& dt, const at::Tensor& z, const at::Tensor& conv_weight,
                  const OptionalTensor& conv_bias, const at::Tensor& a_log, const at::Tensor& dt_bias,
                  const at::Tensor& d, const OptionalTensor& norm_weight, double eps, const at::Tensor& conv_states,
                  const at::Tensor& states, const at::Tensor& runs, const at::Tensor& table, const at::Tensor& count,
                  const OptionalTensor& keep, const OptionalTensor& prompt, double least, double most, bool prompts,
                  bool norm_before_gate, at::ArrayRef<double> factors) {
  Dim T("tokens"), C("channels"), H("heads"), P("head_dim"), N("state_dim"), W("width"), S("states");
  check("x", x).floating().shape({T, C}).last_dim_contiguous();
  check("dt", dt).like(x).shape({T, H}).last_dim_contiguous();
  check_pages("states", states).device(x).dtype({at::kFloat}).shape({S, H, P, N}).contiguous();
  const int64_t values = H * P, groups = N > 0 ? (C - values) / (2 * N) : 0;
  TORCH_CHECK(groups > 0 && C == values + 2 * groups * N && H % groups == 0, "x: expected channels of heads [",
              int64_t(H), ", ", int64_t(P), "] and of groups of them, twice ", int64_t(N), " each, got ", x.sizes());
  Dim I("inner", values);
  check("z", z).like(x).shape({T, I}).last_dim_contiguous();
  check("conv_weight", conv_weight).like(x).shape({C, W}).contiguous();
  if (conv_bias) check("conv_bias", *conv_bias).like(x).shape({C}).contiguous();
  check("a_log", a_log).like(x).shape({H}).contiguous();
  check("dt_bias", dt_bias).like(x).shape({H}).contiguous();
  check("d", d).like(x).shape({H}).contiguous();
  if (norm_weight) check("norm_weight", *norm_weight).like(x).shape({I}).contiguous();
  check_pages("conv_states", conv_states).like(x).shape({S, C, W}).contiguous().disjoint("x", x);
  check_slots(runs, table, count, x);
  if (keep) check("keep", *keep).like(x).shape({T}).contiguous();
  Dim R("sequences", runs.size(0));
  if (prompt) check("prompt", *prompt).device(x).dtype({at::kInt}).shape({R});
  TORCH_CHECK(least >= 0 && least <= most, "bounds: expected two numbers from 0 up, the lower one first, got ", least,
              ", ", most);
  const int64_t size = mamba2_max_dim, numbers = mamba2_max_state;
  TORCH_CHECK(P <= size && N <= size && P * N <= numbers, "states: expected heads of at most [", size, ", ", size,
              "] numbers, ", numbers, " in all, got ", states.sizes());
  TORCH_CHECK(W > 0 && W <= int64_t(mamba2_max_width), "conv_weight: expected a width of 1 to ", mamba2_max_width,
              ", got ", conv_weight.sizes());
  Mamba2Args args{};
  args.heads = u32(H), args.per_group = u32(H / groups), args.group_size = u32(values / groups);
  args.channels = u32(C);
  args.slots = u32(table.size(1)), args.runs_stride = u32(runs.stride(0)), args.table_stride = u32(table.stride(0));
  args.count_stride = u32(count.stride(0)), args.x_stride = u32(x.stride(0)), args.dt_stride = u32(dt.stride(0));
  args.z_stride = u32(z.stride(0)), args.eps = epsilon(eps);
  args.prompt_stride = prompt ? u32(prompt->stride(0)) : 0;
  constexpr double largest = std::numeric_limits<float>::max(); // infinity is none of fast math's
  args.least = float(std::min(least, largest)), args.most = float(std::min(most, largest));

  TORCH_CHECK(factors.empty() || factors.size() == 5, "factors: expected those of z, x, B, C and dt, or none, got ",
              factors.size());
  for (size_t i = 0; i < 5; i++) args.factors[i] = factors.empty() ? 1.0f : finite("factors", factors[i]);

  at::Tensor out = at::empty({T, values}, x.options());
  if (out.numel() == 0 || runs.size(0) == 0) return out;
  at::Tensor y = at::empty({T, values}, states.options());
  const KernelKey::Constants given{{FC_MAMBA2_CONV_BIAS, conv_bias.has_value()},
                                   {FC_MAMBA2_KEEP, keep.has_value()},
                                   {FC_MAMBA2_PROMPT, prompt.has_value()}};
  const KernelArgument type = x.scalar_type(), head = int(P), keys = int(N), width = int(W);
  const int64_t least_chunked = std::max<int64_t>(table.size(1), mamba2_least_chunked), sequences = runs.size(0);
  const bool chunks = prompts && T >= least_chunked && P % 8 == 0 && N % 8 == 0;
  args.longest = chunks ? u32(least_chunked - 1) : std::numeric_limits<uint32_t>::max();
  if (chunks) {
    const int64_t parts = std::min<int64_t>(ceil_div(T, recurrent_chunk), 1024),
                  blocks = ceil_div(C + H, mamba2_input_threads);
    at::Tensor rows = at::empty({T + sequences * recurrent_chunk, C + 2 * H}, states.options());
    Launch inputs(x.device(), {"mamba2_prompt.metal", "mamba2_inputs", {type, width}, given});
    inputs.in(x).in(dt).in(conv_weight).in(conv_bias).in(a_log).in(dt_bias).inout(conv_states).in(runs).in(table);
    inputs.in(count).in(keep).in(prompt).out(rows).args(args);
    inputs.run(per_row(blocks, mamba2_input_threads, sequences, parts));
    const uint32_t shares = ceil_div(P, 8 * mamba2_chunk_simdgroups), simdgroups = ceil_div(P, 8 * shares);
    Launch recurrence(x.device(), {"mamba2_prompt.metal", "mamba2_chunks", {type, head, keys}});
    recurrence.in(rows).in(d).inout(states).in(runs).in(table).in(count).inout(y).args(args);
    recurrence.run(per_row(H, simd_width * simdgroups, sequences, shares));
  }
  Launch scan(x.device(), {"mamba2.metal", "mamba2", {type, head, keys, width}, given});
  scan.in(x).in(dt).in(conv_weight).in(conv_bias).in(a_log).in(dt_bias).in(d).inout(conv_states).inout(states);
  scan.in(runs).in(table).in(count).in(keep).in(prompt).inout(y).args(args);
  const int64_t state = values * N * states.itemsize() + C * W * x.itemsize();
  scan.min_bytes(sequences * 2 * state + x.nbytes() + dt.nbytes() + y.nbytes());
  scan.run(per_row(H, simd_width * mamba2_simdgroups(u32(P * N)), sequences));
  const KernelKey::Constants form{{FC_MAMBA2_NORM, norm_weight.has_value()}, {FC_MAMBA2_NORM_FIRST, norm_before_gate}};
  Launch norm(x.device(), {"mamba2.metal", "mamba2_norm", {type}, form});
  norm.in(y).in(z).in(norm_weight).out(out).args(args).run(per_row(T * groups, mamba2_norm_threads));
  return out;
}

} // namespace

FOUNDRY_OP("mamba2(Tensor x, Tensor dt, Tensor z, Tensor conv_weight, Tensor? conv_bias, Tensor a_log, Tensor dt_bias, "
           "Tensor d, Tensor? norm_weight, float eps, Tensor(a!) conv_states, Tensor(b!) states, Tensor runs, "
           "Tensor table, Tensor count, Tensor? keep=None, Tensor? prompt=None, float least=0.0, float most=3e38, "
           "bool prompts=False, bool norm_before_gate=False, float[] factors=[]) -> Tensor",
           "mamba2", mamba2)

} // namespace foundry
