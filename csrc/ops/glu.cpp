#include "core/op.h"
#include "linear/glu.h"
#include "linear/sparse_glu.h"
#include "ops/layout.h"
#include "ops/options.h"

namespace foundry {
namespace {

at::Tensor glu(const at::Tensor& gate, const at::Tensor& up, std::string_view activation, double gate_scale) {
  const char* policy = activation_named(activation).policy;
  check("gate", gate).floating().last_dim_contiguous();
  check("up", up).like(gate).last_dim_contiguous();
  check_same_shape("up", up, "gate", gate);
  GluArgs args{};
  args.gate_scale = finite("gate_scale", gate_scale);
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  if (gate.numel() == 0) return y;

  const bool aligned = gate.size(-1) % 8 == 0 && aligned_rows(gate) && aligned_rows(up);
  args.n = u32(gate.size(-1));
  args.threads_per_row = ceil_div(args.n, glu_per_thread);
  args.gate = rows_of("gate", gate);
  args.up = rows_of("up", up);
  Launch(gate.device(), {"glu.metal", "glu", {gate.scalar_type(), policy, aligned ? 8 : 1}})
      .in(gate)
      .in(up)
      .out(y)
      .args(args)
      .run(per_element(row_count(gate) * args.threads_per_row));
  return y;
}

at::Tensor sparse_glu(const at::Tensor& gate, const at::Tensor& up, double deviations, std::string_view activation) {
  const Activation& kind = activation_named(activation);
  TORCH_CHECK(!kind.of_pair, "activation: expected one of a single number, got ", activation);
  check("gate", gate).floating().last_dim_contiguous();
  check("up", up).like(gate).last_dim_contiguous();
  check_same_shape("up", up, "gate", gate);
  SparseGluArgs args{};
  args.deviations = finite("deviations", deviations);
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  if (gate.numel() == 0) return y;

  args.n = u32(gate.size(-1));
  args.gate = rows_of("gate", gate);
  args.up = rows_of("up", up);
  const uint32_t simdgroups = ceil_div(args.n, sparse_glu_per_thread * simd_width);
  Launch(gate.device(), {"sparse_glu.metal", "sparse_glu", {gate.scalar_type(), kind.policy}})
      .in(gate)
      .in(up)
      .out(y)
      .args(args)
      .run(per_row(row_count(gate), simd_width * std::min(simdgroups, sparse_glu_max_threads / simd_width)));
  return y;
}

} // namespace

FOUNDRY_OP("glu(Tensor gate, Tensor up, str activation=\"silu\", float gate_scale=1.0) -> Tensor", "glu", glu)
FOUNDRY_OP("sparse_glu(Tensor gate, Tensor up, float deviations, str activation=\"gelu_tanh\") -> Tensor", "sparse_glu",
           sparse_glu)

} // namespace foundry
