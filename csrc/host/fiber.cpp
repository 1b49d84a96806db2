#include "runtime_fibers.h"

#include <cstdio>
#include <cstdlib>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
#if defined(MSL_FIBER_UCONTEXT)
#include <ucontext.h>
#endif
#if defined(MSL_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(MSL_TSAN)
extern "C" {
void* __tsan_create_fiber(unsigned flags);
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void* __tsan_get_current_fiber(void);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#endif

namespace msl_ {

namespace {

#if defined(MSL_ASAN) || defined(MSL_TSAN)
constexpr size_t kStackBytes = 256 << 10; // instrumented frames are larger
#else
constexpr size_t kStackBytes = 128 << 10;
#endif

[[noreturn]] void out_of_memory() {
  std::fprintf(stderr, "torch_foundry: no memory for the stacks of GPU threads\n");
  std::abort();
}

} // namespace

StackBlock::StackBlock() {
  const size_t guard = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  stride_ = kStackBytes + guard;
  void* memory =
      mmap(nullptr, stride_ * kLanes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) out_of_memory();
  base_ = static_cast<char*>(memory);
  // Endless recursion or a huge private array must fault, not run into a neighbour's stack.
  for (uint32_t lane = 0; lane < kLanes; lane++) mprotect(base_ + lane * stride_, guard, PROT_NONE);
}

StackBlock::~StackBlock() { munmap(base_, stride_ * kLanes); }

void* StackBlock::bottom(uint32_t lane) const { return base_ + (lane + 1) * stride_ - kStackBytes; }

void* StackBlock::top(uint32_t lane, uint32_t index) const {
  // Staggered, or the hot lines of all lanes would fall into the same sets of the cache.
  return static_cast<char*>(bottom(lane)) + kStackBytes - 64 - index * 576 % 8192;
}

size_t StackBlock::bytes() { return kStackBytes; }

#if defined(MSL_FIBER_UCONTEXT)

void prepare(Context* context, void* stack_bottom, void*) {
  auto* machine = static_cast<ucontext_t*>(context->machine);
  if (machine == nullptr) context->machine = machine = new ucontext_t;
  getcontext(machine);
  machine->uc_stack.ss_sp = stack_bottom;
  machine->uc_stack.ss_size = kStackBytes;
  machine->uc_link = nullptr;
  makecontext(machine, msl_rt_fiber_entry, 0);
  context->fresh = true;
}

void destroy(Context* context) {
  delete static_cast<ucontext_t*>(context->machine);
  context->machine = nullptr;
}

void jump(Context* to) {
  setcontext(static_cast<ucontext_t*>(to->machine));
  std::abort(); // it returns only if the context is not one
}

#endif

#if defined(MSL_ASAN)
namespace {
thread_local const void* main_stack_bottom;
thread_local size_t main_stack_bytes;
} // namespace

void sanitizer_begin(Thread*) {}
void sanitizer_end(Thread*) {}

void sanitizer_entered(Thread*) {
  const void* bottom;
  size_t bytes;
  __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
  if (main_stack_bottom == nullptr)
    main_stack_bottom = bottom, main_stack_bytes = bytes; // the first switch is from main
}

namespace {
void announce(void** save, const Thread* to) {
  const bool to_main = to->stack_bottom == nullptr;
  __sanitizer_start_switch_fiber(save, to_main ? main_stack_bottom : to->stack_bottom,
                                 to_main ? main_stack_bytes : kStackBytes);
}
} // namespace
#elif defined(MSL_TSAN)
// Without an edge of its own: what orders threads is what the kernel asks for.
constexpr unsigned kNoSync = 1;

// A thread keeps its fiber for the threadgroups of a launch: one takes 800 KB of memory, fresh from the system.
void sanitizer_begin(Thread* thread) {
  const bool is_main = thread->stack_bottom == nullptr;
  if (is_main)
    thread->sanitizer_fiber = __tsan_get_current_fiber();
  else if (thread->sanitizer_fiber == nullptr)
    thread->sanitizer_fiber = __tsan_create_fiber(0);
}
void sanitizer_end(Thread* thread) {
  if (thread->sanitizer_fiber != nullptr) __tsan_destroy_fiber(thread->sanitizer_fiber);
  thread->sanitizer_fiber = nullptr;
}
void sanitizer_entered(Thread*) {}
#endif

#if defined(MSL_ASAN)
void sanitizer_leave(Thread* to) { announce(nullptr, to); }
#elif defined(MSL_TSAN)
void sanitizer_leave(Thread* to) { __tsan_switch_to_fiber(to->sanitizer_fiber, kNoSync); }
#endif

} // namespace msl_

using namespace msl_;

#if defined(MSL_FIBER_UCONTEXT)
void msl_rt_switch_context(Context* from, Context* to) {
  if (from->machine == nullptr) from->machine = new ucontext_t; // of the OS thread itself
  from->fresh = false;
  swapcontext(static_cast<ucontext_t*>(from->machine), static_cast<ucontext_t*>(to->machine));
}
#endif

#if defined(MSL_ASAN)
void msl_rt_switch(Thread* from, Thread* to) {
  current() = to;
  announce(&from->sanitizer_fiber, to);
  switch_context(&from->context, &to->context);
  __sanitizer_finish_switch_fiber(from->sanitizer_fiber, nullptr, nullptr);
}
#elif defined(MSL_TSAN)
void msl_rt_switch(Thread* from, Thread* to) {
  current() = to;
  __tsan_switch_to_fiber(to->sanitizer_fiber, kNoSync);
  switch_context(&from->context, &to->context);
}
void msl_rt_release(void* address) { __tsan_release(address); }
void msl_rt_acquire(void* address) { __tsan_acquire(address); }
#endif
