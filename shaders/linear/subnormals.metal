// Whether a GPU keeps halves that are subnormal: sixteen codes as products have them (split_codes), each with a half
// added to it, and less the zero that it is around.
#include "linear/subnormals.h"

#include "quant/format.h"

using namespace metal;
using namespace foundry;

[[kernel]] void subnormal_codes(
    device float* out [[buffer(0)]],
    constant SubnormalArgs& args [[buffer(1)]],
    uint i [[thread_position_in_grid]]) {
  float codes[4], around[4];
  split_codes(args.words[i], 0x00ff00ffu, 0, 0.0h, codes);
  split_codes(args.words[i], 0x00ff00ffu, 0, half(subnormal_zero), around);
  for (uint j = 0; j < 4; ++j) {
    out[8 * i + 2 * j] = fma(codes[j], args.unit, 0.5f);
    out[8 * i + 2 * j + 1] = around[j] * args.unit;
  }
}
