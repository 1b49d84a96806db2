// Copies from device to threadgroup memory that a simdgroup makes ahead of their use. Metal has them finished at once;
// where a GPU copies without its lanes, its prelude overloads these for pieces of 16, 8 and 4 bytes.
#pragma once
#include "common/portable.h"

namespace foundry {

template <typename V> METAL_FUNC void copy_ahead(threadgroup V* to, device const V* from) { *to = *from; }

// The copies since the last call are a group, even if there are none.
template <typename V> METAL_FUNC void end_group_of_copies(threadgroup V*) {}

// Returns when all groups of all lanes but the last LEFT are there.
template <int LEFT, typename V> METAL_FUNC void wait_for_copies(threadgroup V*) {
  metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
}

} // namespace foundry
