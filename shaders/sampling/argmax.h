// Host and GPU share this: arguments and tuning of argmax.metal.
#pragma once
#include "common/rows.h"

namespace foundry {

// One threadgroup reduces one chunk of a row. A vocabulary of 152k makes 38 of them, enough for the largest GPU's
// cores.
FOUNDRY_CONST uint32_t argmax_chunk = 4096;
FOUNDRY_CONST uint32_t argmax_threads = 128;

// What is left of a chunk: `key` orders like the value it stands for, `index` is its lowest position.
struct ArgmaxPartial {
  uint32_t key;
  uint32_t index;
};
static_assert(sizeof(ArgmaxPartial) == 8, "shared with the host");

struct ArgmaxArgs {
  uint32_t n;      // elements of a row
  uint32_t chunks; // per row
  Rows logits;
};
static_assert(sizeof(ArgmaxArgs) == 28, "shared with the host");

} // namespace foundry
