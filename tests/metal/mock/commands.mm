#include "commands.h"

#include <Block.h>

namespace mock {

void drain(id<MTLCommandQueue> queue) {
  auto* own = checked<MockQueue>(queue, "the queue");
  while (!own->submitted->empty()) {
    MockCommandBuffer* first = own->submitted->front();
    own->submitted->pop_front();
    [first run];
    [first release];
  }
  if (own->failure->empty()) return;
  std::string failure;
  failure.swap(*own->failure);
  throw std::runtime_error("MockMetal: command-buffer-error: " + failure);
}

namespace {
struct WrapperState { // of an MPSCommandBuffer
  MockQueue* queue = nil;
  MockCommandBuffer* current = nil;
};
} // namespace

MockCommandBuffer* current_buffer(MPSCommandBuffer* wrapper) { return state<WrapperState>(wrapper).current; }

MPSCommandBuffer* make_mps_buffer(MockQueue* queue) {
  MPSCommandBuffer* wrapper = [MPSCommandBuffer alloc];
  auto& own = state<WrapperState>(wrapper);
  own.queue = queue;
  own.current = [static_cast<MockCommandBuffer*>([queue commandBuffer]) retain];
  return wrapper;
}

} // namespace mock

@implementation MockQueue
+ (id)allocWithZone:(NSZone*)zone {
  MockQueue* queue = [super allocWithZone:zone];
  queue->submitted = new std::deque<MockCommandBuffer*>;
  queue->failure = new std::string;
  return queue;
}
- (void)finish {
  MOCK_RULE("freed-object", submitted->empty(), "a command queue was released before its work was done");
  delete submitted;
  delete failure;
}
- (id<MTLDevice>)device {
  return mock::device();
}
- (id<MTLCommandBuffer>)commandBuffer {
  MockCommandBuffer* made = [MockCommandBuffer alloc];
  made->queue = self;
  return [made autorelease];
}
@end

@implementation MockCommandBuffer
+ (id)allocWithZone:(NSZone*)zone {
  MockCommandBuffer* made = [super allocWithZone:zone];
  made->work = new std::vector<mock::Work>;
  made->handlers = new std::vector<MTLCommandBufferHandler>;
  return made;
}
- (void)finish {
  if (encoder) mock::note("open-encoder", "a command buffer was released while an encoder was open");
  delete work;
  delete handlers;
  [error release];
}
- (void)add:(mock::Work)item {
  MOCK_RULE("committed-buffer", status == MTLCommandBufferStatusNotEnqueued,
            "encoding into a committed command buffer");
  work->push_back(std::move(item));
}
- (id<MTLDevice>)device {
  return mock::device();
}
- (id<MTLCommandQueue>)commandQueue {
  return queue;
}
- (MTLCommandBufferStatus)status {
  return status;
}
- (NSError*)error {
  return error;
}
- (CFTimeInterval)GPUStartTime {
  return 0;
}
- (CFTimeInterval)GPUEndTime {
  return 1e-6;
}

- (void)openEncoder:(id)made {
  MOCK_RULE("second-encoder", encoder == nil, "A command encoder is already encoding to this command buffer");
  MOCK_RULE("committed-buffer", status == MTLCommandBufferStatusNotEnqueued, "encoder for a committed command buffer");
  encoder = made;
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
  return [self computeCommandEncoderWithDispatchType:MTLDispatchTypeSerial];
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
  MockCompute* made = [[MockCompute alloc] autorelease];
  [self openEncoder:made];
  made->buffer = [self retain];
  made->concurrent = type == MTLDispatchTypeConcurrent;
  mock::trace(made->concurrent ? "concurrent encoder" : "compute encoder");
  return made;
}
- (id<MTLBlitCommandEncoder>)blitCommandEncoder {
  MockBlit* made = [[MockBlit alloc] autorelease];
  [self openEncoder:made];
  made->buffer = [self retain];
  return made;
}
- (void)addCompletedHandler:(MTLCommandBufferHandler)handler {
  MOCK_RULE("committed-buffer", status == MTLCommandBufferStatusNotEnqueued, "addCompletedHandler after commit");
  handlers->push_back(Block_copy(handler));
}
- (void)commit {
  MOCK_RULE("open-encoder", encoder == nil, "commit while an encoder is open");
  MOCK_RULE("committed-buffer", status == MTLCommandBufferStatusNotEnqueued, "commit of a committed command buffer");
  status = MTLCommandBufferStatusCommitted;
  queue->submitted->push_back([self retain]);
  mock::trace("commit");
}
- (void)waitUntilCompleted {
  MOCK_RULE("committed-buffer", status != MTLCommandBufferStatusNotEnqueued, "waitUntilCompleted before commit");
  while (status == MTLCommandBufferStatusCommitted) {
    MockCommandBuffer* first = queue->submitted->front();
    queue->submitted->pop_front();
    [first run];
    [first release];
  }
}

- (void)run {
  std::string failure;
  if (mock::settings().fail_command_buffer > 0 && --mock::settings().fail_command_buffer == 0)
    failure = "Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang)";
  try {
    for (size_t i = 0; i < work->size() && failure.empty(); i++) (*work)[i]();
  } catch (const c10::Error& wrong) {
    failure = wrong.what_without_backtrace();
  } catch (const std::exception& wrong) {
    failure = wrong.what();
  }
  work->clear(); // lets go of what it held
  @autoreleasepool {
    if (failure.empty()) {
      status = MTLCommandBufferStatusCompleted;
    } else {
      status = MTLCommandBufferStatusError;
      error = [mock::make_error(@"MTLCommandBufferErrorDomain", 1, failure) retain];
      if (queue->failure->empty()) *queue->failure = failure;
    }
    for (MTLCommandBufferHandler handler : *handlers) {
      handler(self);
      Block_release(handler);
    }
    handlers->clear();
  }
}
@end

@implementation MPSCommandBuffer
+ (id)allocWithZone:(NSZone*)zone {
  return mock::allocate_with_state<mock::WrapperState>(self, "MPSCommandBuffer");
}
- (void)dealloc {
  [mock::state<mock::WrapperState>(self).current release];
  mock::free_state<mock::WrapperState>(self, "MPSCommandBuffer");
  [super dealloc];
}
- (id<MTLDevice>)device {
  return mock::device();
}
- (id<MTLCommandQueue>)commandQueue {
  return mock::state<mock::WrapperState>(self).queue;
}
- (MTLCommandBufferStatus)status {
  return [mock::current_buffer(self) status];
}
- (NSError*)error {
  return [mock::current_buffer(self) error];
}
- (CFTimeInterval)GPUStartTime {
  return 0;
}
- (CFTimeInterval)GPUEndTime {
  return 1e-6;
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
  return [mock::current_buffer(self) computeCommandEncoder];
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)type {
  return [mock::current_buffer(self) computeCommandEncoderWithDispatchType:type];
}
- (id<MTLBlitCommandEncoder>)blitCommandEncoder {
  return [mock::current_buffer(self) blitCommandEncoder];
}
- (void)addCompletedHandler:(MTLCommandBufferHandler)handler {
  [mock::current_buffer(self) addCompletedHandler:handler];
}
- (void)commit {
  [mock::current_buffer(self) commit];
}
- (void)waitUntilCompleted {
  [mock::current_buffer(self) waitUntilCompleted];
}
- (void)commitAndContinue {
  @autoreleasepool {
    auto& own = mock::state<mock::WrapperState>(self);
    [own.current commit];
    [own.current release];
    own.current = [static_cast<MockCommandBuffer*>([own.queue commandBuffer]) retain];
  }
}
@end
