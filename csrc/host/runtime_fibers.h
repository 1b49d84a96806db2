// What the runtime needs of fibers beyond the inlined switch: stacks, starting, leaving, telling the sanitizers.
#pragma once
#include "runtime_state.h"

namespace msl_ {

// The stacks of one simdgroup's lanes, each with a guard page below it.
class StackBlock {
public:
  StackBlock();
  ~StackBlock();
  StackBlock(const StackBlock&) = delete;
  StackBlock& operator=(const StackBlock&) = delete;
  void* bottom(uint32_t lane) const;
  void* top(uint32_t lane, uint32_t index) const; // index: of the thread in its threadgroup
  static size_t bytes();

private:
  char* base_;
  size_t stride_;
};

// Makes the next switch to `context` enter msl_rt_fiber_entry on this stack.
#if defined(MSL_FIBER_UCONTEXT)
void prepare(Context* context, void* stack_bottom, void* stack_top);
void destroy(Context* context);
[[noreturn]] void jump(Context* to);
#else
MSL_INLINE void prepare(Context* context, void*, void* stack_top) {
#if defined(__x86_64__)
  void** top = static_cast<void**>(stack_top);
  *--top = nullptr; // the return address that entry code expects on its stack
  stack_top = top;
#endif
  *context = {stack_top, (void*)&msl_rt_fiber_entry, nullptr, nullptr};
}
MSL_INLINE void destroy(Context*) {}
#endif

#if defined(MSL_ASAN) || defined(MSL_TSAN)
constexpr bool kSanitized = true;
void sanitizer_begin(Thread* thread);   // called in the OS thread's own fiber, for it and then for each thread
void sanitizer_end(Thread* thread);     // after the last threadgroup of a launch
void sanitizer_entered(Thread* thread); // called first on a new fiber
void sanitizer_leave(Thread* to);       // called last on a fiber
#else
constexpr bool kSanitized = false;
inline void sanitizer_begin(Thread*) {}
inline void sanitizer_end(Thread*) {}
inline void sanitizer_entered(Thread*) {}
inline void sanitizer_leave(Thread*) {}
#endif

// Switches away from a fiber that has finished: nothing of it is kept. Inlined, as is all between a fiber's first code
// and the kernel: a call without its return would put the processor's prediction of returns out of step.
[[noreturn]] MSL_INLINE void leave(Thread* to) {
  current() = to;
  sanitizer_leave(to);
#if defined(MSL_FIBER_UCONTEXT)
  jump(&to->context);
#else
  Context abandoned;
  switch_context(&abandoned, &to->context);
  __builtin_unreachable();
#endif
}

} // namespace msl_
