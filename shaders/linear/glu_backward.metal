// The gradients of gate and up of the gated product in glu.metal, in f32, each rounded once. They need nothing but the
// two operands: what the activation gave is computed again.
#include "linear/glu_backward.h"

#include "common/activation.h"
#include "common/vec.h"

using namespace metal;
using namespace foundry;

// foundry-lint: instance(glu_backward<half, Silu, 8>)
// foundry-lint: instance(glu_backward<float, ClampedSwiglu, 1>)
// foundry-lint: instance(glu_backward<bfloat, Gelu, 8>)
// foundry-lint: instance(glu_backward<float, GeluTanh, 8>)
template <typename T, typename Activation, int VEC>
[[kernel]] void glu_backward(
    device const T* grad [[buffer(0)]],
    device const T* gate [[buffer(1)]],
    device const T* up [[buffer(2)]],
    device T* gate_grad [[buffer(3)]],
    device T* up_grad [[buffer(4)]],
    constant GluBackwardArgs& args [[buffer(5)]],
    uint gid [[thread_position_in_grid]]) {
  const uint row = gid / args.threads_per_row;
  const uint first = (gid % args.threads_per_row) * glu_per_thread;
  device const T* grad_row = grad + row_offset(args.grad, row);
  device const T* gate_row = gate + row_offset(args.gate, row);
  device const T* up_row = up + row_offset(args.up, row);
  for (uint k = 0; k < glu_per_thread / VEC; ++k) {
    const uint i = first + k * VEC;
    if (i < args.n) {
      float d[VEC], g[VEC], u[VEC], of_gate[VEC], of_up[VEC];
      load(grad_row + i, d);
      load(gate_row + i, g);
      load(up_row + i, u);
      for (int j = 0; j < VEC; ++j) {
        g[j] *= args.gate_scale;
        of_gate[j] = args.gate_scale * Gate<Activation>::gate_grad(g[j], u[j], d[j]);
        of_up[j] = Gate<Activation>::up_grad(g[j], u[j], d[j]);
      }
      store(gate_grad + row * args.n + i, of_gate);
      store(up_grad + row * args.n + i, of_up);
    }
  }
}
