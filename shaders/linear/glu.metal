// Gated product: y = act(gate) * up, in f32, rounded once.
#include "linear/glu.h"

#include "common/activation.h"
#include "common/vec.h"

using namespace metal;
using namespace foundry;

// foundry-lint: instance(glu<half, Silu, 8>)
// foundry-lint: instance(glu<float, ClampedSwiglu, 1>)
// foundry-lint: instance(glu<bfloat, Sigmoid, 1>)
template <typename T, typename Activation, int VEC>
[[kernel]] void glu(
    device const T* gate [[buffer(0)]],
    device const T* up [[buffer(1)]],
    device T* y [[buffer(2)]],
    constant GluArgs& args [[buffer(3)]],
    uint gid [[thread_position_in_grid]]) {
  const uint row = gid / args.threads_per_row;
  const uint first = (gid % args.threads_per_row) * glu_per_thread;
  device const T* gate_row = gate + row_offset(args.gate, row);
  device const T* up_row = up + row_offset(args.up, row);
  for (uint k = 0; k < glu_per_thread / VEC; ++k) {
    const uint i = first + k * VEC;
    if (i < args.n) {
      float g[VEC], u[VEC];
      load(gate_row + i, g);
      load(up_row + i, u);
      for (int j = 0; j < VEC; ++j)
        g[j] = Gate<Activation>::apply(g[j] * args.gate_scale, u[j]);
      store(y + row * args.n + i, g);
    }
  }
}
