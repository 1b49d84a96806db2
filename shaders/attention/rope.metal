// Rotary embedding of heads on their own, without a cache: what a training step needs, forward and backward. cos and
// sin may be wider than T; between reading and the one rounding at the end all is f32.
#include "attention/rope.h"

#include "common/vec.h"

using namespace metal;
using namespace foundry;

// A thread owns 2 VEC elements of one head: VEC pairs to rotate, or 2 VEC to copy. y is [batch, tokens, heads, dim].
// foundry-lint: instance(rope<half, float, 8>)
// foundry-lint: instance(rope<bfloat, bfloat, 1>)
template <typename T, typename Table, int VEC>
[[kernel]] void rope(
    device const T* x [[buffer(0)]],
    device const Table* cosines [[buffer(1)]],
    device const Table* sines [[buffer(2)]],
    device T* y [[buffer(3)]],
    constant RopeArgs& args [[buffer(4)]],
    uint gid [[thread_position_in_grid]]) {
  const uint unit = gid % args.units, row = gid / args.units, head = row % args.heads;
  const uint token = row / args.heads % args.tokens, batch = row / args.heads / args.tokens;
  device const T* in = x + batch * args.x_batch + head * args.x_head + token * args.x_token;
  device T* out = y + row * args.head_dim;
  const uint half_dim = args.rotary_dim / 2, pair = unit * VEC;
  const bool rotates = pair < half_dim, apart = rotates && !args.interleaved;
  const uint first = apart ? pair : 2 * pair, second = apart ? pair + half_dim : first + VEC;

  float a[VEC], b[VEC];
  load(in + first, a);
  load(in + second, b);
  if (rotates) {
    device const Table* cos_row = cosines + batch * args.cos_batch + token * args.cos_token + pair;
    device const Table* sin_row = sines + batch * args.sin_batch + token * args.sin_token + pair;
    float cos_a[VEC], cos_b[VEC], sin_a[VEC], sin_b[VEC], pairs[2 * VEC];
    load(cos_row, cos_a);
    load(cos_row + half_dim, cos_b);
    load(sin_row, sin_a);
    load(sin_row + half_dim, sin_b);
    for (int n = 0; n < VEC; ++n)
      pairs[n] = a[n], pairs[VEC + n] = b[n];
    for (int n = 0; n < VEC; ++n) {
      const float p = apart ? pairs[n] : pairs[2 * n], q = apart ? pairs[VEC + n] : pairs[2 * n + 1];
      a[n] = p * cos_a[n] + (args.transposed ? q * sin_b[n] : -(q * sin_a[n]));
      b[n] = q * cos_b[n] + (args.transposed ? -(p * sin_a[n]) : p * sin_b[n]);
    }
    if (!apart) {
      for (int n = 0; n < VEC; ++n)
        pairs[2 * n] = a[n], pairs[2 * n + 1] = b[n];
      for (int n = 0; n < VEC; ++n)
        a[n] = pairs[n], b[n] = pairs[VEC + n];
    }
  }
  store(out + first, a);
  store(out + second, b);
}
