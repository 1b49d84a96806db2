// While torch captures a stream, its encoder is a stand-in that writes down what it is told and passes it on. It knows
// plain dispatches and what they need; everything else is the rule unknown-selector.
#include "commands.h"

@interface MockCapture : MockObject <MTLComputeCommandEncoder> {
@public
  id<MTLComputeCommandEncoder> real;
}
@end

@implementation MockCapture
- (void)finish {
  [real release];
}
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
  [real setComputePipelineState:state];
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  [real setBuffer:buffer offset:offset atIndex:index];
}
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  [real setBytes:bytes length:length atIndex:index];
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  [real setThreadgroupMemoryLength:length atIndex:index];
}
- (void)dispatchThreads:(MTLSize)size threadsPerThreadgroup:(MTLSize)group {
  mock::trace("captured");
  [real dispatchThreads:size threadsPerThreadgroup:group];
}
- (void)dispatchThreadgroups:(MTLSize)size threadsPerThreadgroup:(MTLSize)group {
  mock::trace("captured");
  [real dispatchThreadgroups:size threadsPerThreadgroup:group];
}
@end

namespace mock {

id<MTLComputeCommandEncoder> capturing(id<MTLComputeCommandEncoder> encoder) {
  MockCapture* made = [[MockCapture alloc] autorelease];
  made->real = [encoder retain];
  return made;
}

} // namespace mock
