// An address of the shaders' own (shaders/linear/loader.h) as this GPU has it best: constants behind an element are
// part of a load, those behind an index that is scaled are not.
#pragma once
#include "vector.h"

namespace metal {

template <class T> MSL_INLINE const T* chunk_at(const T* row, uint2 at) { return row + at.d[1]; }

} // namespace metal
