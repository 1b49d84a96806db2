// The variables of the classes that the caller makes.
#pragma once

#include "device.h"

namespace mock {

// A retained object.
template <class T> class Held {
public:
  Held() = default;
  ~Held() { [object_ release]; }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  T get() const { return object_; }
  void set(T object) {
    [object retain];
    [object_ release];
    object_ = object;
  }

private:
  T object_ = nil;
};

struct MTLCompileOptionsState {
  Held<NSDictionary*> preprocessorMacros;
  BOOL fastMathEnabled = YES;
  MTLMathMode mathMode = MTLMathModeFast;
  MTLMathFloatingPointFunctions mathFloatingPointFunctions = MTLMathFloatingPointFunctionsFast;
  MTLLanguageVersion languageVersion = MTLLanguageVersion3_1;
  BOOL preserveInvariance = NO;
};

struct MTLComputePipelineDescriptorState {
  Held<NSString*> label;
  Held<id<MTLFunction>> computeFunction;
  Held<NSArray*> binaryArchives;
  BOOL supportIndirectCommandBuffers = NO;
  BOOL threadGroupSizeIsMultipleOfThreadExecutionWidth = NO;
  NSUInteger maxTotalThreadsPerThreadgroup = 0;
};

struct MTLIndirectCommandBufferDescriptorState {
  MTLIndirectCommandType commandTypes = 0;
  BOOL inheritPipelineState = YES;
  BOOL inheritBuffers = YES;
  NSUInteger maxKernelBufferBindCount = 0;
  NSUInteger maxKernelThreadgroupMemoryBindCount = 31;
};

struct MTLBinaryArchiveDescriptorState {
  Held<NSURL*> url;
};

struct MTLIOCommandQueueDescriptorState {
  MTLIOCommandQueueType type = MTLIOCommandQueueTypeConcurrent;
};

struct MTLFunctionConstantValuesState {
  MockConstants values;
};

struct MTLComputePipelineReflectionState {
  Held<NSArray*> bindings;
};

// What a pipeline's kernel takes, without what function constants switch off. Autoreleased.
MTLComputePipelineReflection* reflect(MockPipeline* pipeline);

foundry::Constant constant_of(const void* value, MTLDataType type, NSUInteger index);

} // namespace mock
