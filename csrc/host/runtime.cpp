#include "runtime.h"

#include "runtime_launch.h"
#include "runtime_pool.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <thread>
#if defined(__linux__)
#include <sched.h>
#endif

namespace msl_ {

namespace {

// A helper is woken for no less than this many GPU threads: it takes some 10 us to wake it, they some 20 ns each.
constexpr uint64_t kThreadsPerHelper = 512;
// Threadgroups are handed out in chunks, this many per OS thread: enough to even out, few enough to share the counter.
constexpr uint64_t kChunksPerThread = 8;

struct Config {
  std::atomic<int> lane_order{MSL_ORDER_FORWARD};
  std::atomic<uint64_t> seed{0};
  std::atomic<int> threads{0};
  std::atomic<bool> strict{true};
  std::atomic<bool> flush_subnormals{false};
  std::atomic<uint32_t> tensor_layout{0};
} config;

// The calling thread's arithmetic with subnormals flushed, if asked for, while this lives. All fibers of an OS thread
// share its control register.
class Arithmetic {
public:
  explicit Arithmetic(bool flush) : before_(control()) {
    if (flush) set_control(before_ | kFlush);
  }
  ~Arithmetic() { set_control(before_); }
  Arithmetic(const Arithmetic&) = delete;
  Arithmetic& operator=(const Arithmetic&) = delete;

private:
#if defined(__x86_64__)
  using Control = uint32_t;
  static constexpr Control kFlush = 0x8040; // of MXCSR: FTZ and DAZ
  static Control control() { return __builtin_ia32_stmxcsr(); }
  static void set_control(Control value) { __builtin_ia32_ldmxcsr(value); }
#elif defined(__aarch64__)
  using Control = uint64_t;
  static constexpr Control kFlush = 1 << 24; // of FPCR: FZ
  static Control control() {
    Control value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
  }
  static void set_control(Control value) { __asm__ volatile("msr fpcr, %0" : : "r"(value)); }
#else
#error "the host executor runs on x86-64 and arm64"
#endif
  const Control before_;
};

uint32_t processors() {
  static const uint32_t count = [] {
#if defined(__linux__) // what this process may use, not what the machine has; macOS binds no process to processors
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
      return static_cast<uint32_t>(CPU_COUNT(&set));
#endif
    return std::max(1u, std::thread::hardware_concurrency());
  }();
  return count;
}

uint32_t os_threads() {
  const int wanted = config.threads.load(std::memory_order_relaxed);
  return wanted > 0 ? static_cast<uint32_t>(wanted) : processors();
}

// Visits the threadgroups in the order that corresponds to the lane order: order between them must not matter either.
class GroupOrder {
public:
  explicit GroupOrder(const LaunchState& state) : count_(state.ngroups) {
    if (state.lane_order == MSL_ORDER_REVERSE) step_ = count_ - 1, start_ = count_ - 1;
    if (state.lane_order == MSL_ORDER_RANDOM) {
      start_ = state.seed % count_;
      step_ = (count_ * 5 / 8 + state.seed * 2 % count_) % count_ | 1;
      while (std::gcd(step_, count_) != 1) step_ += 2;
      step_ %= count_;
      if (count_ == 1) step_ = 0;
    }
  }
  uint64_t operator[](uint64_t k) const {
    return static_cast<uint64_t>((start_ + static_cast<unsigned __int128>(k) * step_) % count_);
  }

private:
  uint64_t count_;
  uint64_t start_ = 0;
  uint64_t step_ = 1;
};

void run_groups(LaunchState& state, Runner& runner, uint64_t chunk) {
  const GroupOrder order(state);
  const bool plain = state.lane_order == MSL_ORDER_FORWARD;
  const Arithmetic arithmetic(state.flush_subnormals);
  runner.bind(state);
  for (;;) {
    const uint64_t begin = state.next_group.fetch_add(chunk, std::memory_order_relaxed);
    if (begin >= state.ngroups) return;
    for (uint64_t k = begin; k < std::min(begin + chunk, state.ngroups); k++) {
      if (state.failed.load(std::memory_order_relaxed)) return;
      const uint64_t linear = plain ? k : order[k];
      const uint32_t at[3] = {static_cast<uint32_t>(linear % state.groups[0]),
                              static_cast<uint32_t>(linear / state.groups[0] % state.groups[1]),
                              static_cast<uint32_t>(linear / state.groups[0] / state.groups[1])};
      runner.run(at);
    }
  }
}

int report(const std::string& message, char* error, uint64_t error_bytes) {
  if (error != nullptr && error_bytes > 0) std::snprintf(error, error_bytes, "%s", message.c_str());
  return 1;
}

} // namespace

void LaunchState::fail(const std::string& message) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!failed.exchange(true)) error_ = message;
}

std::string format(const char* pattern, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

} // namespace msl_

using namespace msl_;

uint32_t msl_rt_abi() { return MSL_ABI; }

void msl_rt_configure(int lane_order, uint64_t seed, int threads, int strict) {
  config.lane_order = lane_order;
  config.seed = seed;
  config.threads = threads;
  config.strict = strict != 0;
}

void msl_rt_flush_subnormals(int flush) { config.flush_subnormals = flush != 0; }

void msl_rt_tensor_layout(uint32_t layout) { config.tensor_layout = layout; }

int msl_rt_launch(const msl_launch* launch, char* error, uint64_t error_bytes) {
  const std::string refusal = check_launch(*launch);
  if (!refusal.empty()) return report(refusal, error, error_bytes);

  LaunchState state;
  state.launch = launch;
  state.ngroups = 1;
  uint64_t nthreads = 1;
  for (int axis = 0; axis < 3; axis++) {
    const uint32_t size = launch->group[axis], given = launch->grid[axis];
    state.groups[axis] = launch->grid_is_threads ? given / size + (given % size != 0) : given;
    state.grid[axis] = launch->grid_is_threads ? given : given * size;
    state.ngroups *= state.groups[axis];
    nthreads *= state.grid[axis];
  }
  if (nthreads == 0) return 0;
  state.lane_order = config.lane_order;
  state.seed = config.seed;
  state.strict = config.strict;
  state.flush_subnormals = config.flush_subnormals;
  state.tensor_layout = config.tensor_layout;

  const uint64_t useful = std::min(state.ngroups, nthreads / kThreadsPerHelper);
  const auto helpers = static_cast<uint32_t>(std::min<uint64_t>(os_threads() - 1, useful > 0 ? useful - 1 : 0));
  const uint64_t chunk = std::max<uint64_t>(1, state.ngroups / ((helpers + 1) * kChunksPerThread));
  const auto work = [&](Runner& runner) {
    run_groups(state, runner, chunk);
    runner.end();
  };
  Pool::instance().run(work, helpers);
  return state.failed ? report(state.error(), error, error_bytes) : 0;
}
