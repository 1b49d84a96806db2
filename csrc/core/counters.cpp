#include "core/counters.h"

#include <mutex>
#include <vector>

#include <c10/util/Exception.h>

namespace foundry {
namespace {

std::mutex mutex;
Counts total;
std::map<std::string, Counts>& scopes() {
  static auto* map = new std::map<std::string, Counts>;
  return *map;
}
thread_local std::vector<std::string> stack;

void add(Counts& counts, int64_t launches, int64_t bytes, int64_t ns) {
  counts.launches += launches;
  counts.bytes += bytes;
  counts.host_ns += ns;
}

} // namespace

CountedLaunch::~CountedLaunch() {
  const auto elapsed = std::chrono::steady_clock::now() - start_;
  const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count();
  std::lock_guard<std::mutex> lock(mutex);
  add(total, launches_, bytes_, ns);
  for (const std::string& name : stack) add(scopes()[name], launches_, bytes_, ns);
}

void push_scope(const std::string& name) { stack.push_back(stack.empty() ? name : stack.back() + "." + name); }

void pop_scope() {
  TORCH_CHECK(!stack.empty(), "torch_foundry: scope closed that was never opened");
  stack.pop_back();
}

std::string current_scope() { return stack.empty() ? "" : stack.back(); }

Counts total_counts() {
  std::lock_guard<std::mutex> lock(mutex);
  return total;
}

std::map<std::string, Counts> scope_counts() {
  std::lock_guard<std::mutex> lock(mutex);
  return scopes();
}

void reset_counts() {
  std::lock_guard<std::mutex> lock(mutex);
  total = {};
  scopes().clear();
}

} // namespace foundry
