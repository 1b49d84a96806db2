#include "runtime_pool.h"

#include <chrono>
#include <pthread.h>
#include <thread>

namespace msl_ {

namespace {

// A model issues its next launch within microseconds: a helper that sleeps in between costs more than it saves.
constexpr auto kSpinTime = std::chrono::microseconds(50);

std::atomic<Pool*> the_pool{nullptr};

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <class Condition> bool spin_until(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kSpinTime;
  do {
    for (int i = 0; i < 16; i++) {
      if (condition()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

void order_before([[maybe_unused]] void* token) {
#if defined(MSL_TSAN)
  msl_rt_release(token); // ThreadSanitizer does not see the atomics of this uninstrumented code
#endif
}

void order_after([[maybe_unused]] void* token) {
#if defined(MSL_TSAN)
  msl_rt_acquire(token);
#endif
}

} // namespace

Pool& Pool::instance() {
  static const bool once = [] {
    the_pool = new Pool; // never deleted: helpers may outlive static objects
    // The locks and threads of the parent mean nothing in the child. The old pool is left as it is.
    pthread_atfork(nullptr, nullptr, [] { the_pool = new Pool; });
    return true;
  }();
  (void)once;
  return *the_pool;
}

void Pool::run(const std::function<void(Runner&)>& work, uint32_t helpers) {
  std::unique_ptr<Runner> runner = acquire_runner();
  if (helpers == 0) {
    work(*runner);
  } else {
    Job job{&work, helpers};
    order_before(&job);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (; nthreads_ < helpers; nthreads_++) std::thread([this] { serve(); }).detach();
      job.next = open_;
      open_ = &job;
      epoch_.fetch_add(1, std::memory_order_release);
    }
    const uint32_t awake = spinning_.load(std::memory_order_relaxed);
    for (uint32_t i = awake; i < helpers; i++) work_arrived_.notify_one();
    work(*runner);
    close(&job);
    await(&job);
    order_after(&job);
  }
  release_runner(std::move(runner));
}

// No helper joins any more.
void Pool::close(Job* job) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (Job** link = &open_; *link != nullptr; link = &(*link)->next)
    if (*link == job) {
      *link = job->next;
      return;
    }
}

void Pool::await(Job* job) {
  const auto done = [job] { return job->running.load(std::memory_order_acquire) == 0; };
  if (spin_until(done)) return;
  std::unique_lock<std::mutex> lock(mutex_);
  helper_done_.wait(lock, done);
}

Pool::Job* Pool::take() {
  std::lock_guard<std::mutex> lock(mutex_);
  Job* job = open_;
  if (job == nullptr) return nullptr;
  job->running.fetch_add(1, std::memory_order_relaxed);
  if (--job->wanted == 0) open_ = job->next;
  return job;
}

void Pool::serve() {
  Runner runner;
  for (;;) {
    const uint32_t seen = epoch_.load(std::memory_order_acquire);
    if (Job* job = take()) {
      order_after(job);
      (*job->work)(runner);
      order_before(job);
      // The launching thread may drop the job as soon as this is zero.
      if (job->running.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        {
          std::lock_guard<std::mutex> lock(mutex_);
        }
        helper_done_.notify_all();
      }
      continue;
    }
    const auto arrived = [this, seen] { return epoch_.load(std::memory_order_acquire) != seen; };
    spinning_.fetch_add(1, std::memory_order_relaxed);
    const bool found = spin_until(arrived);
    spinning_.fetch_sub(1, std::memory_order_relaxed);
    if (found) continue;
    std::unique_lock<std::mutex> lock(mutex_);
    work_arrived_.wait(lock, [&] { return open_ != nullptr; });
  }
}

std::unique_ptr<Runner> Pool::acquire_runner() {
  {
    std::lock_guard<std::mutex> lock(runners_mutex_);
    if (!runners_.empty()) {
      std::unique_ptr<Runner> runner = std::move(runners_.back());
      runners_.pop_back();
      return runner;
    }
  }
  return std::make_unique<Runner>();
}

void Pool::release_runner(std::unique_ptr<Runner> runner) {
  std::lock_guard<std::mutex> lock(runners_mutex_);
  runners_.push_back(std::move(runner));
}

} // namespace msl_
