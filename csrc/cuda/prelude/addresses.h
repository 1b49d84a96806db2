// An address of the shaders' own (shaders/linear/loader.h) as this GPU has it best: a constant is part of the load, a
// scaled index is not, and costs registers.
#pragma once
#include "vector.h"

namespace metal {

template <class T> MSL_INLINE const T* chunk_at(const T* row, uint2 at) { return row + (at.d[0] + at.d[1]); }

} // namespace metal
