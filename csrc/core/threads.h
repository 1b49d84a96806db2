// Work on the CPU by several threads. at::parallel_for is one thread's loop in code that isn't compiled with OpenMP,
// as this isn't: Apple's compiler has none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace foundry {

// Calls `work` with 0 ... count - 1, in at most `threads` threads, the caller's among them; throws what a call threw.
void side_by_side(size_t count, size_t threads, const std::function<void(size_t)>& work);

// Calls work(begin, end) for parts of 0 ... n - 1, `part` long but for the last, in as many threads as torch uses.
void in_parts(int64_t n, int64_t part, const std::function<void(int64_t, int64_t)>& work);

} // namespace foundry
