// Where the elements of an 8x8 matrix lie: two in a lane, neighbours in a row. The layout is the one that Apple GPUs
// have and shaders rely on (thread_elements()): with quad = lane / 4, a lane holds row (quad & 4) + (lane / 2) % 4,
// columns (quad & 2) * 2 + (lane % 2) * 2 and the next.
#pragma once
#include "vector.h"

namespace msl_ {

constexpr uint matrix_row(uint lane) { return (lane / 4 & 4) + lane / 2 % 4; }
constexpr uint matrix_column(uint lane) { return (lane / 4 & 2) * 2 + lane % 2 * 2; }

// The two elements of a lane.
struct Pair {
  float x, y;
};
template <class T> MSL_INLINE Pair to_pair(const vec<T, 2>& v) {
  return {static_cast<float>(v.d[0]), static_cast<float>(v.d[1])};
}

} // namespace msl_
