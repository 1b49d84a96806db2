// Rows of a strided tensor: where row `r` of x[..., n] begins, for up to three levels of strides.
#pragma once
#include "common/portable.h"

namespace foundry {

struct Rows {
  uint32_t size1, size2;              // rows of the middle and of the innermost level
  uint32_t stride0, stride1, stride2; // in elements, outermost first
};
static_assert(sizeof(Rows) == 20, "shared with the host");

#ifdef __METAL_VERSION__
METAL_FUNC uint row_offset(constant Rows& rows, uint row) {
  const uint outer = row / rows.size2;
  return (outer / rows.size1) * rows.stride0 + (outer % rows.size1) * rows.stride1 + (row % rows.size2) * rows.stride2;
}
#endif

} // namespace foundry
