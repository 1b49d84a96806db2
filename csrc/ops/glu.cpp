#include "core/op.h"
#include "glu.h"
#include "ops/layout.h"

namespace foundry {
namespace {

constexpr const char* kActivations[] = {"Silu", "GeluTanh", "Gelu"};

at::Tensor glu(const at::Tensor& gate, const at::Tensor& up, std::string_view activation_name) {
  const int activation = choose("activation", activation_name, {"silu", "gelu_tanh", "gelu"});
  check("gate", gate).floating().last_dim_contiguous();
  check("up", up).like(gate).last_dim_contiguous();
  check_same_shape("up", up, "gate", gate);
  at::Tensor y = at::empty(gate.sizes(), gate.options());
  if (gate.numel() == 0) return y;

  const bool aligned = gate.size(-1) % 8 == 0 && aligned_rows(gate) && aligned_rows(up);
  GluArgs args{};
  args.n = static_cast<uint32_t>(gate.size(-1));
  args.threads_per_row = ceil_div(args.n, glu_per_thread);
  args.gate = rows_of("gate", gate);
  args.up = rows_of("up", up);
  static PipelineTable<18> table;
  const int variant = (dtype_index(gate.scalar_type()) * 3 + activation) * 2 + aligned;
  Pipeline& pipeline = table.get(gate.device(), variant, [&] {
    return Kernel{
        "glu.metal", "glu", {metal_type(gate.scalar_type()), kActivations[activation], aligned ? "8" : "1"}, {}, ""};
  });
  Launch(pipeline).in(gate).in(up).out(y).args(args).run(per_element(row_count(gate) * args.threads_per_row));
  return y;
}

} // namespace

FOUNDRY_OP("glu(Tensor gate, Tensor up, str activation=\"silu\") -> Tensor", "glu", glu)

} // namespace foundry
