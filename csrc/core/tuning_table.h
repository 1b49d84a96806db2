// The built-in entries of the tuning table.
#pragma once

#include <c10/util/ArrayRef.h>

#include "core/tuning.h"

namespace foundry::tuning {

// A choice for every shape up to `n` x `k` that no line above covers. For attention n is the largest head_dim.
struct Line {
  const char* families; // a prefix: "sm_90-h200", "sm_90", "apple", "" for all that have none of their own
  Op op;
  const char* format; // weight format, or dtype's format for attention; "packed" for all packed ones, "" for all
  int rows;           // smallest number of rows that it is for (1, 2, 4, 8); attention, routes: 1
  int64_t n, k;
  Choice choice;
};

c10::ArrayRef<Line> built_in();

} // namespace foundry::tuning
