// The OS threads that run threadgroups besides the one that launches.
#pragma once
#include "runtime_group.h"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

namespace msl_ {

class Pool {
public:
  // The process's pool. After a fork the child gets a new one: threads do not survive it.
  static Pool& instance();

  // Calls work(runner) here and on up to `helpers` pool threads at once; returns when all calls have returned.
  void run(const std::function<void(Runner&)>& work, uint32_t helpers);

private:
  struct Job {
    const std::function<void(Runner&)>* work;
    uint32_t wanted; // helpers that may still join; guarded by mutex_
    std::atomic<uint32_t> running{0};
    Job* next = nullptr;
  };

  void serve();
  Job* take();
  void close(Job* job);
  void await(Job* job);
  std::unique_ptr<Runner> acquire_runner();
  void release_runner(std::unique_ptr<Runner> runner);

  std::mutex mutex_;
  std::condition_variable work_arrived_;
  std::condition_variable helper_done_;
  std::atomic<uint32_t> epoch_{0};    // counts jobs
  std::atomic<uint32_t> spinning_{0}; // helpers that look out for a job without sleeping
  uint32_t nthreads_ = 0;
  Job* open_ = nullptr; // jobs that want helpers
  std::mutex runners_mutex_;
  std::vector<std::unique_ptr<Runner>> runners_; // idle ones of launching threads
};

} // namespace msl_
