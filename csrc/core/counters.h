// Launches, bytes and host time, in total and per scope. Cheap enough to stay on.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace foundry {

struct Counts {
  int64_t launches = 0;
  int64_t bytes = 0;   // that the ops declared they must move
  int64_t host_ns = 0; // spent in launching; on the host executor that includes running
};

// Counts one launch (or a graph's), with the time until it goes out of scope.
class CountedLaunch {
public:
  explicit CountedLaunch(int64_t bytes, int64_t launches = 1)
      : bytes_(bytes), launches_(launches), start_(std::chrono::steady_clock::now()) {}
  ~CountedLaunch();

private:
  int64_t bytes_;
  int64_t launches_;
  std::chrono::steady_clock::time_point start_;
};

// Scopes nest per thread; a launch counts for every scope that encloses it ("layers.3", then "layers.3.mlp").
void push_scope(const std::string& name);
void pop_scope();
std::string current_scope(); // of this thread, "layers.3.mlp"; empty outside of all

Counts total_counts();
std::map<std::string, Counts> scope_counts();
void reset_counts();

} // namespace foundry
