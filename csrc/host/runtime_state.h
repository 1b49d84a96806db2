// The state of running threadgroups, shared by the runtime and the code compiled into kernels.
//
// One GPU thread is one fiber. The lanes of a simdgroup run one after another, each until it finishes or waits in a
// simd function or barrier; then the next lane of the chain runs. The end of the chain asks the scheduler, which sees
// where everyone waits: msl_rt_next().
#pragma once
#include "fiber.h"
#include "runtime.h"

// Code that lanes run to talk to each other. ThreadSanitizer must not see it: to it lanes are threads, and this is how
// they are synchronised.
#if defined(MSL_TSAN)
#define MSL_LANE_CODE inline __attribute__((noinline, no_sanitize("thread")))
#else
#define MSL_LANE_CODE MSL_INLINE
#endif

namespace msl_ {

struct Simdgroup;
struct LaunchState; // of the runtime

constexpr uint32_t kLanes = MSL_LANES;

struct alignas(64) Thread {
  Context context;
  Thread* next; // runs after this one; null at the end of the chain
  Simdgroup* simdgroup;
  uint16_t lane;
  uint16_t index;       // in the threadgroup
  uint16_t position[3]; // in the threadgroup
#if defined(MSL_ASAN) || defined(MSL_TSAN)
  const void* stack_bottom;
  void* sanitizer_fiber; // ASan: the fake stack; TSan: its fiber
#endif
};

// Where lanes leave values for each other. Each size has its own place, so lanes that wait in different functions of
// divergent code cannot overwrite each other's values.
struct alignas(64) Slots {
  unsigned char of4[kLanes * 4];
  unsigned char of8[kLanes * 8];
  unsigned char of16[kLanes * 16];
  unsigned char of64[kLanes * 64];
  float matrices[3 * 64]; // operands of a matrix product: A, B, C
};

// A site is where a lane waits: source line << 8 | kind of operation.
constexpr uint32_t kSiteFinished = 0;
constexpr uint32_t kSiteBarrier = 1; // the kind; greater ones are simd functions, which exchange values
constexpr uint32_t site_kind(uint32_t site) { return site & 255; }
constexpr uint32_t site_line(uint32_t site) { return site >> 8; }

struct Simdgroup {
  Slots* in;        // lanes publish here ...
  const Slots* out; // ... and read the values of the operation that just completed here
  Group* group;     // that it runs in
  uint32_t active;  // lanes that take part in the operation that just completed
  uint32_t size;    // lanes: 32, or fewer in the last simdgroup
  bool reduced;     // some lane has put the common result into `result`
  alignas(64) uint32_t site[kLanes];
  alignas(64) unsigned char result[256];
  Thread* threads;          // lane 0
  Thread* first;            // head of the chain to run
  uint32_t waiting;         // lanes at the threadgroup barrier
  bool chain_is_full;       // the chain links all lanes in a fixed order
  const char* file[kLanes]; // of the barrier that a lane waits at
  Slots slots[2];
};

struct ThreadgroupLocal {
  const void* key;
  void* address;
};

// A running threadgroup as its threads see it. There is one per OS thread, used for one threadgroup after another.
struct Group {
  void* const* buffers;
  uint32_t nbuffers;
  uint32_t grid[3];         // threads
  uint32_t groups[3];       // threadgroups
  uint32_t nominal_size[3]; // threads of a threadgroup that is not cut by the grid's edge
  uint32_t size[3];         // threads of this one
  uint32_t position[3];
  uint32_t nthreads;
  uint32_t nominal_nthreads;
  uint32_t tensor_layout; // of cooperative tensors
  void* threadgroup_memory[MSL_MAX_BUFFERS];
  ThreadgroupLocal locals[256];
  uint32_t nlocals;
  msl_thunk kernel;
  LaunchState* launch;
};

// The GPU thread that this OS thread executes now. On macOS a library that looks its symbols up when it is loaded, as
// kernels do, can't have a thread-local of another one: there the runtime says by a call where its own is.
#if defined(__APPLE__)
#define MSL_CURRENT_BY_CALL 1
#endif
#if !defined(MSL_CURRENT_BY_CALL)
extern MSL_EXPORT __thread Thread* running __attribute__((tls_model("initial-exec")));
MSL_INLINE Thread*& current() { return running; }
#endif

} // namespace msl_

extern "C" {
// The thread to run next, after the chain of this simdgroup has ended.
MSL_EXPORT msl_::Thread* msl_rt_next(msl_::Simdgroup* simdgroup);
// Fails the launch that this OS thread works on: checked builds call it.
MSL_EXPORT void msl_rt_report(uint32_t line, const char* file, const char* what);
MSL_EXPORT void* msl_rt_threadgroup_local(msl_::Group* group, unsigned char* key, uint64_t bytes);
#if defined(MSL_CURRENT_BY_CALL)
MSL_EXPORT msl_::Thread** msl_rt_current();
#endif
#if defined(MSL_ASAN) || defined(MSL_TSAN)
MSL_EXPORT void msl_rt_switch(msl_::Thread* from, msl_::Thread* to);
MSL_EXPORT void msl_rt_release(void* address);
MSL_EXPORT void msl_rt_acquire(void* address);
#endif
}

namespace msl_ {

#if defined(MSL_CURRENT_BY_CALL)
MSL_INLINE Thread*& current() { return *msl_rt_current(); }
#endif

MSL_INLINE void switch_thread(Thread* from, Thread* to) {
#if defined(MSL_ASAN) || defined(MSL_TSAN)
  msl_rt_switch(from, to);
#else
  current() = to;
  switch_context(&from->context, &to->context);
#endif
}

// Puts the calling lane to sleep at `site` until the scheduler lets it go on.
MSL_LANE_CODE void wait_at(Thread* me, Simdgroup* simdgroup, uint32_t site) {
  simdgroup->site[me->lane] = site;
  Thread* next = me->next;
  if (__builtin_expect(next == nullptr, 0)) next = msl_rt_next(simdgroup);
  if (__builtin_expect(next != me, 1)) switch_thread(me, next);
}

// The calling lane is done. Returns the lane that may start on this stack, or null if the scheduler has to decide.
MSL_LANE_CODE Thread* finish(Thread* me) {
  me->simdgroup->site[me->lane] = kSiteFinished;
#if defined(MSL_ASAN) || defined(MSL_TSAN)
  return nullptr; // the sanitizers want one stack per fiber
#else
  Thread* next = me->next;
  if (next == nullptr || !is_fresh(next->context)) return nullptr;
  current() = next;
  return next;
#endif
}

} // namespace msl_
