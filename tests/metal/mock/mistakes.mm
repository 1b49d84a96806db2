// Deliberate mistakes, one for each rule, for test_rules.py: `torch.ops.mock_metal.mistake(name, x)`.
#include <ATen/mps/MPSProfiler.h>
#include <ATen/mps/MPSStream.h>

#include <thread>

#include "commands.h"
#include "descriptors.h"
#include "device_memory.h"

@interface NSObject (NotInTheMock)
- (id)newHeapWithDescriptor:(id)descriptor;
@end

namespace mock {
namespace {

constexpr const char* kSource = R"(#include <metal_stdlib>
using namespace metal;
constant bool negate [[function_constant(0)]];
kernel void twice(device const float* x [[buffer(0)]], device float* y [[buffer(1)]], constant uint& n [[buffer(2)]],
                  uint i [[thread_position_in_grid]]) {
  if (i < n) y[i] = negate ? -2 * x[i] : 2 * x[i];
}
kernel void shared(device float* y [[buffer(0)]], threadgroup float* memory [[threadgroup(0)]],
                   uint i [[thread_position_in_threadgroup]]) {
  memory[i] = i;
  y[i] = memory[i];
}
)";

NSString* nsstring_of(const char* text) { return [NSString stringWithUTF8String:text]; }

MTLCompileOptions* options(bool fast = false) {
  MTLCompileOptions* made = [[[MTLCompileOptions alloc] init] autorelease];
  made.mathMode = fast ? MTLMathModeFast : MTLMathModeSafe;
  made.fastMathEnabled = fast;
  return made;
}

id<MTLLibrary> library(const char* source = kSource) {
  NSError* error = nil;
  id<MTLLibrary> made = [device() newLibraryWithSource:nsstring_of(source) options:options() error:&error];
  TORCH_CHECK(made, [[error localizedDescription] UTF8String]);
  return [made autorelease];
}

id<MTLComputePipelineState> pipeline(const char* name, bool indirect = false) {
  MTLFunctionConstantValues* constants = [[[MTLFunctionConstantValues alloc] init] autorelease];
  const bool negate = false;
  [constants setConstantValue:&negate type:MTLDataTypeBool atIndex:0];
  NSError* error = nil;
  id<MTLFunction> function = [library() newFunctionWithName:nsstring_of(name) constantValues:constants error:&error];
  TORCH_CHECK(function, [[error localizedDescription] UTF8String]);
  MTLComputePipelineDescriptor* descriptor = [[[MTLComputePipelineDescriptor alloc] init] autorelease];
  descriptor.computeFunction = [function autorelease];
  descriptor.supportIndirectCommandBuffers = indirect;
  id<MTLComputePipelineState> made = [device() newComputePipelineStateWithDescriptor:descriptor
                                                                             options:MTLPipelineOptionNone
                                                                          reflection:nil
                                                                               error:&error];
  TORCH_CHECK(made, [[error localizedDescription] UTF8String]);
  return [made autorelease];
}

MockBuffer* buffer_of(const at::Tensor& x) { return static_cast<MockBuffer*>(const_cast<void*>(x.storage().data())); }

MTLSize size(NSUInteger n) { return MTLSizeMake(n, 1, 1); }

struct Client { // an encoder with all that a launch of `twice` needs, on the stream's queue
  at::Tensor x, y;
  at::mps::MPSStream* stream;
  id<MTLComputePipelineState> twice, shared, twice_indirect;
  id<MTLComputeCommandEncoder> encoder;

  void bind(uint32_t n = 8) const {
    [encoder setComputePipelineState:twice];
    [encoder setBuffer:buffer_of(x) offset:0 atIndex:0];
    [encoder setBuffer:buffer_of(y) offset:0 atIndex:1];
    [encoder setBytes:&n length:sizeof n atIndex:2];
  }
  void launch() const { [encoder dispatchThreads:size(8) threadsPerThreadgroup:size(8)]; }
};

constexpr NSUInteger kPage = 1 << 16; // whole pages, however large these are
constexpr MTLResourceOptions kShared = MTLResourceStorageModeShared;
char* pages() {
  alignas(kPage) static char memory[kPage];
  return memory;
}

// Commands that read a file into the buffer of x, 32 bytes.
struct Reading {
  explicit Reading(const Client& c) : x(buffer_of(c.x)) {
    MTLIOCommandQueueDescriptor* descriptor = [[[MTLIOCommandQueueDescriptor alloc] init] autorelease];
    queue = [[device() newIOCommandQueueWithDescriptor:descriptor error:nil] autorelease];
    file = [[device() newIOFileHandleWithURL:[NSURL fileURLWithPath:@"/proc/self/exe"] error:nil] autorelease];
    commands = [queue commandBuffer];
  }
  void load(NSUInteger offset, NSUInteger size) const {
    [commands loadBuffer:x offset:offset size:size sourceHandle:file sourceHandleOffset:0];
  }
  MockBuffer* x;
  id<MTLIOCommandQueue> queue;
  id<MTLIOFileHandle> file;
  id<MTLIOCommandBuffer> commands;
};

MTLIndirectCommandBufferDescriptor* icb_descriptor() {
  MTLIndirectCommandBufferDescriptor* made = [[[MTLIndirectCommandBufferDescriptor alloc] init] autorelease];
  made.commandTypes = MTLIndirectCommandTypeConcurrentDispatch;
  made.inheritBuffers = NO;
  made.inheritPipelineState = NO;
  made.maxKernelBufferBindCount = 3;
  made.maxKernelThreadgroupMemoryBindCount = 1;
  return made;
}

// y = 2 x, then y = 2 y, with and without a barrier between them. `n` and the indirect command buffer are the caller's.
struct Indirect {
  explicit Indirect(const Client& c, bool barrier = true) : client(c) {
    icb = [device() newIndirectCommandBufferWithDescriptor:icb_descriptor()
                                           maxCommandCount:2
                                                   options:MTLResourceStorageModeShared];
    const uint32_t count = 8;
    n = [device() newBufferWithBytes:&count length:sizeof count options:MTLResourceStorageModeShared];
    for (int i = 0; i < 2; i++) {
      id<MTLIndirectComputeCommand> command = [icb indirectComputeCommandAtIndex:i];
      [command setComputePipelineState:c.twice_indirect];
      [command setKernelBuffer:buffer_of(i ? c.y : c.x) offset:0 atIndex:0];
      [command setKernelBuffer:buffer_of(c.y) offset:0 atIndex:1];
      [command setKernelBuffer:n offset:0 atIndex:2];
      if (barrier && i) [command setBarrier];
      [command concurrentDispatchThreadgroups:size(1) threadsPerThreadgroup:size(8)];
    }
  }
  void reside(MTLResourceUsage of_y = MTLResourceUsageRead | MTLResourceUsageWrite) const {
    id<MTLResource> read[] = {buffer_of(client.x), n};
    id<MTLResource> written[] = {buffer_of(client.y)};
    [client.encoder useResources:read count:2 usage:MTLResourceUsageRead];
    [client.encoder useResources:written count:1 usage:of_y];
  }
  void execute() const { [client.encoder executeCommandsInBuffer:icb withRange:NSMakeRange(0, 2)]; }
  void finish() const { // the GPU needs both until it is done
    client.stream->synchronize(at::mps::SyncType::COMMIT_AND_WAIT);
    [icb release];
    [n release];
  }

  const Client& client;
  id<MTLIndirectCommandBuffer> icb;
  id<MTLBuffer> n;
};

using Mistake = std::function<void(Client&)>;

#include "mistakes_list.h"

at::Tensor mistake(const std::string& name, const at::Tensor& x) {
  auto found = mistakes().find(name);
  TORCH_CHECK_VALUE(found != mistakes().end(), "no mistake is named ", name);
  @autoreleasepool {
    Client client{x, at::empty_like(x), at::mps::getCurrentMPSStream(), nil, nil, nil, nil};
    client.twice = pipeline("twice");
    client.shared = pipeline("shared");
    if (settings().icb) client.twice_indirect = pipeline("twice", true);
    const Mistake& make = found->second;
    if (name.rfind("off:", 0) == 0) { // made outside of the queue
      make(client);
    } else {
      Client* c = &client;
      const Mistake* m = &make;
      at::mps::dispatch_sync_with_rethrow(client.stream->queue(), ^{
        @autoreleasepool {
          c->encoder = c->stream->commandEncoder();
          (*m)(*c);
        }
      });
    }
    synchronize();
    return client.y;
  }
}

std::vector<std::string> names() {
  std::vector<std::string> out;
  for (const auto& [name, make] : mistakes()) out.push_back(name);
  return out;
}

} // namespace

TORCH_LIBRARY_FRAGMENT(mock_metal, m) {
  m.def("mistake(str name, Tensor x) -> Tensor", &mistake);
  m.def("mistakes() -> str[]", &names);
}

} // namespace mock
