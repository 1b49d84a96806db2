// Host and GPU share this: arguments of embedding.metal.
#pragma once
#include "common/rows.h"

#define FC_EMBEDDING_RESIDUAL 0 // function constant: a residual is added to the rows

namespace foundry {

struct EmbeddingArgs {
  uint32_t vocab;
  uint32_t hidden;
  uint32_t row_blocks;  // blocks in a row of the weight
  uint32_t row_threads; // ceil(hidden / chunk)
  uint32_t first;       // whether an id outside the table stands for its first row
  float scale;
  Rows ids;
};
static_assert(sizeof(EmbeddingArgs) == 44, "shared with the host");

} // namespace foundry
