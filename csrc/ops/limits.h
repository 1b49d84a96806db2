// What ops are made for, where no shader says it. limits.cpp tells Python.
#pragma once

#include <cstdint>

namespace foundry {

// head_dim of attention.
constexpr int64_t kLeastHeadDim = 32, kMostHeadDim = 512, kHeadDimStep = 16;

// Rows of x that share one reading of a weight, at most; and those up to which reading it twice costs less than a tile
// that is mostly padding.
constexpr int kRowsTogether = 8, kFewRows = 2 * kRowsTogether;

} // namespace foundry
