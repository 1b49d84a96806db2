#include "mixers/gated_delta.h"

#include <limits>

#include "core/op.h"
#include "mixers/chunks.h"
#include "ops/layout.h"
#include "ops/options.h"
#include "ops/slots.h"

namespace foundry {
namespace {

HeadStrides head_strides(const at::Tensor& x) {
  return {u32(x.stride(0)), u32(x.stride(1)), x.dim() > 2 ? u32(x.stride(2)) : 0};
}

at::Tensor gated_delta(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& z,
                       const at::Tensor& b, const at::Tensor& a, const at::Tensor& conv_weight, const at::Tensor& a_log,
                       const at::Tensor& dt_bias, const at::Tensor& norm_weight, double eps,
                       const at::Tensor& conv_states, const at::Tensor& states, const at::Tensor& runs,
                       const at::Tensor& table, const at::Tensor& count, double beta_scale, double log_bound,
                       bool sigmoid_gate, bool prompts) {
  Dim T("tokens"), H("key heads"), R("value heads of each"), K("key_dim"), V("value_dim"), W("width");
  check("q", q).floating().shape({T, H, K}).last_dim_contiguous();
  check("k", k).like(q).shape({T, H, K}).last_dim_contiguous();
  check("v", v).like(q).shape({T, H, R, V}).last_dim_contiguous();
  check("z", z).like(q).shape({T, H, R, V}).last_dim_contiguous();
  check("b", b).like(q).shape({T, H, R});
  const bool of_rows = a.dim() == 4;
  if (of_rows) {
    check("a", a).like(q).shape({T, H, R, K}).last_dim_contiguous();
    TORCH_CHECK(R == 1, "a: expected one value head of each key head, as rows of states decay, got ", a.sizes());
  } else {
    check("a", a).like(q).shape({T, H, R});
  }
  const int64_t heads = H * R, channels = 2 * H * K + heads * V, decays = of_rows ? int64_t(K) : 1;
  Dim C("channels", channels), S("states"), N("value heads", heads), D("decays", heads * decays);
  check("conv_weight", conv_weight).like(q).shape({C, W}).contiguous();
  check("a_log", a_log).device(q).dtype({at::kFloat, q.scalar_type()}).shape({N}).contiguous();
  check("dt_bias", dt_bias).like(a_log).shape({D}).contiguous();
  check("norm_weight", norm_weight).like(q).shape({V}).contiguous();
  check_pages("conv_states", conv_states).like(q).shape({S, C, W}).contiguous().disjoint("q", q);
  check_pages("states", states).device(q).dtype({at::kFloat}).shape({S, N, K, V}).contiguous();
  check_slots(runs, table, count, q);
  const int64_t most = gated_delta_max_dim, numbers = gated_delta_max_state;
  TORCH_CHECK(K > 0 && K <= most, "q: expected heads of 1 to ", most, " numbers, got ", q.sizes());
  TORCH_CHECK(V > 0 && V <= most && K * V <= numbers, "v: expected heads of 1 to ", std::min(most, numbers / K),
              " numbers, got ", v.sizes());
  TORCH_CHECK(W > 0 && W <= int64_t(gated_delta_max_width), "conv_weight: expected a width of 1 to ",
              gated_delta_max_width, ", got ", conv_weight.sizes());
  GatedDeltaArgs args{};
  args.key_heads = u32(H), args.per_key = u32(R), args.slots = u32(table.size(1));
  args.runs_stride = u32(runs.stride(0)), args.table_stride = u32(table.stride(0));
  args.count_stride = u32(count.stride(0));
  args.eps = Norm("llama", eps).eps, args.beta_scale = finite("beta_scale", beta_scale);
  args.log_bound = finite("log_bound", log_bound);
  TORCH_CHECK(log_bound <= 0, "log_bound: expected at most 0, got ", log_bound);
  args.sigmoid_gate = sigmoid_gate;
  args.q = head_strides(q), args.k = head_strides(k), args.v = head_strides(v), args.z = head_strides(z);
  args.b = head_strides(b), args.a = head_strides(a);

  at::Tensor y = at::empty({T, heads * V}, q.options());
  if (y.numel() == 0 || runs.size(0) == 0) return y;
  const bool chunks =
      prompts && T >= table.size(1) && K % 8 == 0 && K <= int64_t(gated_delta_chunk_keys) && V % 32 == 0;
  args.longest = chunks ? args.slots - 1 : std::numeric_limits<uint32_t>::max();
  if (chunks) {
    const int64_t sequences = runs.size(0), parts = std::min<int64_t>(ceil_div(T, 16), 1024);
    at::Tensor rows = at::empty({T + sequences * recurrent_chunk, channels + (decays + 1) * heads}, states.options());
    const char* file = "gated_delta_prompt.metal";
    const KernelArgument type = q.scalar_type(), keys = int(K), values = int(V), each = int(decays);
    Launch inputs(q.device(), {file, "gated_delta_inputs", {type, a_log.scalar_type(), keys, values, each, int(W)}});
    inputs.in(q).in(k).in(v).in(b).in(a).in(conv_weight).in(a_log).in(dt_bias).inout(conv_states).in(runs).in(table);
    inputs.in(count).out(rows).args(args).run(per_row(2 * H + heads, simd_width * 4, sequences, parts));
    const int64_t chunks_of_heads = rows.size(0) / recurrent_chunk * heads;
    at::Tensor solved = at::empty({chunks_of_heads * gated_delta_solved(u32(decays))}, states.options());
    Launch solve(
        q.device(),
        {"gated_delta_solve.metal", of_rows ? "gated_delta_solve_rows" : "gated_delta_solve", {keys, values, each}});
    (of_rows ? solve.inout(rows) : solve.in(rows)).in(runs).out(solved).args(args);
    solve.run(per_row(heads, simd_width * 4, sequences, std::min<int64_t>(ceil_div(T, recurrent_chunk), 1024)));
    Launch recurrence(q.device(), {file, "gated_delta_chunks", {keys, values, each}});
    recurrence.inout(rows).in(solved).inout(states).in(runs).in(table).in(count).args(args);
    recurrence.run(per_row(heads, simd_width * 4, sequences, V / gated_delta_chunk_columns));
    Launch outputs(q.device(), {file, "gated_delta_outputs", {type, keys, values, each}});
    outputs.in(rows).in(z).in(norm_weight).in(runs).out(y).args(args);
    outputs.run(per_row(heads, simd_width * 4, sequences, parts));
  }
  Launch launch(q.device(), {"gated_delta.metal",
                             "gated_delta",
                             {q.scalar_type(), a_log.scalar_type(), int(K), int(V), int(decays), int(W)}});
  launch.in(q).in(k).in(v).in(z).in(b).in(a).in(conv_weight).in(a_log).in(dt_bias).in(norm_weight);
  launch.inout(conv_states).inout(states).in(runs).in(table).in(count).inout(y).args(args);
  const int64_t state = heads * K * V * states.itemsize() + channels * W * q.itemsize();
  launch.min_bytes(runs.size(0) * 2 * state + q.nbytes() + k.nbytes() + v.nbytes() + z.nbytes() + y.nbytes());
  launch.run(per_row(heads, simd_width * gated_delta_simdgroups(u32(V)), runs.size(0)));
  return y;
}

} // namespace

FOUNDRY_OP("gated_delta(Tensor q, Tensor k, Tensor v, Tensor z, Tensor b, Tensor a, Tensor conv_weight, Tensor a_log, "
           "Tensor dt_bias, Tensor norm_weight, float eps, Tensor(a!) conv_states, Tensor(b!) states, Tensor runs, "
           "Tensor table, Tensor count, float beta_scale=1.0, float log_bound=0.0, bool sigmoid_gate=False, "
           "bool prompts=False) -> Tensor",
           "gated_delta", gated_delta)

} // namespace foundry
