// One launch in progress, as the OS threads that work on it see it.
#pragma once
#include "runtime.h"

#include <atomic>
#include <mutex>
#include <string>

namespace msl_ {

struct LaunchState {
  const msl_launch* launch;
  uint32_t groups[3];
  uint32_t grid[3]; // threads
  uint64_t ngroups;
  int lane_order;
  uint64_t seed;
  bool strict;
  bool flush_subnormals;
  uint32_t tensor_layout;
  std::atomic<uint64_t> next_group{0};
  std::atomic<bool> failed{false};

  // Ends the launch with this message; the first one stays.
  void fail(const std::string& message);
  const std::string& error() const { return error_; }

private:
  std::mutex mutex_;
  std::string error_;
};

// Printf into a string, for messages.
std::string format(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

// Checks a launch against Metal's limits and the kernel's arguments. Returns an error, or "".
std::string check_launch(const msl_launch& launch);

} // namespace msl_
