// What the runtime needs of fibers beyond the inlined switch: stacks, starting, leaving, telling the sanitizers.
#pragma once
#include "runtime_state.h"

namespace msl {

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
void prepare(Context* context, void* stack_bottom, void* stack_top);
void destroy(Context* context);

// Switches away from a fiber that has finished: nothing of it is kept.
[[noreturn]] void leave(Thread* to);

#if defined(MSL_ASAN) || defined(MSL_TSAN)
constexpr bool kSanitized = true;
void sanitizer_begin(Thread* thread);   // called in the OS thread's own fiber, for it and then for each thread
void sanitizer_end(Thread* thread);     // the thread has finished
void sanitizer_entered(Thread* thread); // called first on a new fiber
#else
constexpr bool kSanitized = false;
inline void sanitizer_begin(Thread*) {}
inline void sanitizer_end(Thread*) {}
inline void sanitizer_entered(Thread*) {}
#endif

} // namespace msl
