// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011). Equal counters and keys give equal words everywhere; there is no state.
#pragma once
#include "common/portable.h"

namespace foundry {

METAL_FUNC uint4 philox4x32_10(uint4 counter, uint2 key) {
  for (int round = 0; round < 10; ++round) {
    const uint hi0 = metal::mulhi(0xD2511F53u, counter.x), lo0 = 0xD2511F53u * counter.x;
    const uint hi1 = metal::mulhi(0xCD9E8D57u, counter.z), lo1 = 0xCD9E8D57u * counter.z;
    counter = uint4(hi1 ^ counter.y ^ key.x, lo1, hi0 ^ counter.w ^ key.y, lo0);
    key += uint2(0x9E3779B9u, 0xBB67AE85u);
  }
  return counter;
}

} // namespace foundry
