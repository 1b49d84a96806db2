#include "core/op.h"
#include "linear/glu.h"
#include "ops/layout.h"
#include "ops/options.h"

namespace foundry {
namespace {

at::Tensor glu(const at::Tensor& gate, const at::Tensor& up, std::string_view activation) {
  const char* policy = activation_named(activation).policy;
  check("gate", gate).floating().last_dim_contiguous();
  check("up", up).like(gate).last_dim_contiguous();
  check_same_shape("up", up, "gate", gate);
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  if (gate.numel() == 0) return y;

  const bool aligned = gate.size(-1) % 8 == 0 && aligned_rows(gate) && aligned_rows(up);
  GluArgs args{};
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

} // namespace

FOUNDRY_OP("glu(Tensor gate, Tensor up, str activation=\"silu\") -> Tensor", "glu", glu)

} // namespace foundry
