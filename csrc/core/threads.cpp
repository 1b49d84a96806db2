#include "core/threads.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <system_error>
#include <vector>

#include <ATen/Parallel.h>

namespace foundry {

void side_by_side(size_t count, size_t threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  const auto run = [&] {
    for (size_t i; (i = next++) < count;) work(i);
  };
  std::vector<std::future<void>> others; // destroyed, and so waited for, before what they use
  try {
    while (others.size() + 1 < std::min(count, threads)) others.push_back(std::async(std::launch::async, run));
  } catch (const std::system_error&) { // the system gives no more threads: those that there are do all
  }
  run();
  for (std::future<void>& each : others) each.get();
}

void in_parts(int64_t n, int64_t part, const std::function<void(int64_t, int64_t)>& work) {
  const int64_t parts = (n + part - 1) / part;
  side_by_side(parts, at::get_num_threads(), [&](size_t i) { work(i * part, std::min<int64_t>(n, (i + 1) * part)); });
}

} // namespace foundry
