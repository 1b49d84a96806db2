// Runs threadgroups, one after another, on the calling OS thread.
#pragma once
#include "runtime_fibers.h"
#include "runtime_launch.h"

#include <memory>

namespace msl_ {

class Runner : public Group {
public:
  Runner();
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Prepares for the threadgroups of a launch.
  void bind(LaunchState& state);
  // Runs the threadgroup at this position of the grid, to the end of all its threads.
  void run(const uint32_t at[3]);
  // After the last one of the launch.
  void end();

  Thread* next(Simdgroup* simdgroup);
  void* allocate_local(unsigned char* key, size_t bytes);
  [[noreturn]] void fiber_main();

private:
  void set_size(const uint32_t size[3]);
  void ensure_simdgroups(uint32_t count);
  Thread* release_waiting_lanes(Simdgroup& simdgroup);
  Thread* release_lanes(Simdgroup& simdgroup, uint32_t lanes);
  bool release_barrier();
  void check_barrier(uint32_t arrived);
  void report_divergence(const std::string& what);
  void link(Simdgroup& simdgroup, uint32_t lanes);
  void arrange_queue();
  void clear_threadgroup_memory();
  void free_locals();
  uint32_t random(uint32_t below);

  Thread main_{};
  Thread* threads_;
  std::unique_ptr<Simdgroup> simdgroups_[MSL_MAX_THREADS / kLanes];
  std::unique_ptr<StackBlock> stacks_[MSL_MAX_THREADS / kLanes];
  Simdgroup* queue_[MSL_MAX_THREADS / kLanes]; // simdgroups that can run, in the order in which they will
  uint32_t queued_ = 0;
  uint32_t cursor_ = 0; // the one that runs now
  uint32_t nsimdgroups_ = 0;
  uint32_t prepared_ = 0; // simdgroups whose state exists
  int order_mode_ = MSL_ORDER_FORWARD;
  uint64_t random_state_ = 1;
  char* dynamic_memory_;
  char* local_memory_;
  size_t dynamic_bytes_ = 0; // in the threadgroup memory arguments of this launch
  size_t local_offset_ = 0;
  size_t local_bytes_ = 0;
  char start_token_ = 0; // addresses that stand for start and end of a threadgroup to ThreadSanitizer
  char end_token_ = 0;
};

} // namespace msl_
