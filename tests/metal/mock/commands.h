// Queues, command buffers and encoders. The mock's GPU is as slow as can be: committed work runs when somebody waits
// for it, in order, and not before.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <vector>

#import <MetalPerformanceShaders/MetalPerformanceShaders.h>

#include "device.h"

namespace mock {

// Holds a reference to an object of the mock while the GPU may need it.
template <class T> class Retained {
public:
  Retained() = default;
  explicit Retained(T* object) : object_([object retain]) {}
  Retained(const Retained& other) : object_([other.object_ retain]) {}
  Retained& operator=(Retained other) {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Retained() { [object_ release]; }
  T* get() const { return object_; }
  explicit operator bool() const { return object_ != nil; }

private:
  T* object_ = nil;
};

constexpr size_t kSlots = 31;

struct Slot { // of the buffer table: a buffer with an offset, or bytes by value
  Retained<MockBuffer> buffer;
  NSUInteger offset = 0;
  std::shared_ptr<std::vector<std::max_align_t>> bytes;
  uint32_t size = 0; // of `bytes`
  bool bound() const { return buffer || bytes; }
};

struct Dispatch {
  Retained<MockPipeline> pipeline;
  std::array<Slot, kSlots> slots;
  std::array<uint32_t, kSlots> memory{}; // bytes of threadgroup memory
  MTLSize size{}, group{};
  bool threads = false; // `size` counts threads, not threadgroups
};

void check_offset(MockBuffer* buffer, NSUInteger offset, NSUInteger index);
void check_memory_length(NSUInteger length, NSUInteger index);
void check_dispatch(const Dispatch& dispatch); // what can be told before it runs
void run_dispatch(const Dispatch& dispatch);   // on the host executor

using Work = std::function<void()>;

// Runs what was committed to the queue; throws the failure of a command buffer.
void drain(id<MTLCommandQueue> queue);

} // namespace mock

@class MockCommandBuffer;

@interface MockQueue : MockObject <MTLCommandQueue> {
@public
  std::deque<MockCommandBuffer*>* submitted; // retained
  std::string* failure;                      // of a command buffer that nobody was told of yet
}
@end

@interface MockCommandBuffer : MockObject <MTLCommandBuffer> {
@public
  MockQueue* queue;
  std::vector<mock::Work>* work;
  std::vector<MTLCommandBufferHandler>* handlers;
  id encoder; // the one that is open
  MTLCommandBufferStatus status;
  NSError* error;
}
- (void)add:(mock::Work)item;
- (void)run;
@end

@interface MockCompute : MockObject <MTLComputeCommandEncoder> {
@public
  MockCommandBuffer* buffer;
  mock::Dispatch* current;
  std::map<id, MTLResourceUsage>* resident; // by useResource
  std::map<MockPipeline*, bool>* warm;      // pipelines of zero-size dispatches
  std::vector<mock::Work>* group;           // of a concurrent encoder: between two barriers
  BOOL concurrent, ended;
}
- (void)encode:(mock::Work)item;
@end

@interface MockBlit : MockObject <MTLBlitCommandEncoder> {
@public
  MockCommandBuffer* buffer;
  BOOL ended;
}
@end

namespace mock {
// What torch gives in the place of `encoder` while it captures the stream. Autoreleased.
id<MTLComputeCommandEncoder> capturing(id<MTLComputeCommandEncoder> encoder);
// The command buffer that is open under MPS's own object.
MockCommandBuffer* current_buffer(MPSCommandBuffer* wrapper);
MPSCommandBuffer* make_mps_buffer(MockQueue* queue);
std::string data_of(dispatch_data_t data);
} // namespace mock
