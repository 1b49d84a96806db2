// Classes that the caller makes: Apple's headers declare them without variables, which live in a State each.
#include "descriptors.h"

#include <c10/util/Half.h>
#include <cmath>
#include <cstring>

#define MOCK_STATE_METHODS(name)                                                                                       \
  +(id)allocWithZone : (NSZone*)zone {                                                                                 \
    return mock::allocate_with_state<mock::name##State>(self, #name);                                                  \
  }                                                                                                                    \
  -(void)dealloc {                                                                                                     \
    mock::free_state<mock::name##State>(self, #name);                                                                  \
    [super dealloc];                                                                                                   \
  }
#define MOCK_VALUE(owner, type, getter, setter)                                                                        \
  -(type)getter {                                                                                                      \
    return mock::state<mock::owner##State>(self).getter;                                                               \
  }                                                                                                                    \
  -(void)setter : (type)value {                                                                                        \
    mock::state<mock::owner##State>(self).getter = value;                                                              \
  }
#define MOCK_OBJECT(owner, type, getter, setter)                                                                       \
  -(type)getter {                                                                                                      \
    return mock::state<mock::owner##State>(self).getter.get();                                                         \
  }                                                                                                                    \
  -(void)setter : (type)value {                                                                                        \
    mock::state<mock::owner##State>(self).getter.set(value);                                                           \
  }

namespace mock {
namespace {

std::string text_of(float value) {
  if (std::isnan(value)) return "NAN";
  if (std::isinf(value)) return value > 0 ? "INFINITY" : "-INFINITY";
  char buffer[40];
  snprintf(buffer, sizeof buffer, "%.9gf", value);
  std::string text = buffer;
  if (text.find_first_of(".e") == std::string::npos) text.insert(text.size() - 1, ".0");
  return text;
}

template <class T> T read(const void* value) {
  T out;
  memcpy(&out, value, sizeof out);
  return out;
}

} // namespace

foundry::Constant constant_of(const void* value, MTLDataType type, NSUInteger index) {
  const int i = static_cast<int>(index);
  switch (type) {
  case MTLDataTypeBool: return {i, "bool", read<bool>(value) ? "true" : "false"};
  case MTLDataTypeChar: return {i, "char", std::to_string(read<int8_t>(value))};
  case MTLDataTypeUChar: return {i, "uchar", std::to_string(read<uint8_t>(value))};
  case MTLDataTypeShort: return {i, "short", std::to_string(read<int16_t>(value))};
  case MTLDataTypeUShort: return {i, "ushort", std::to_string(read<uint16_t>(value))};
  case MTLDataTypeInt: return {i, "int", std::to_string(read<int32_t>(value))};
  case MTLDataTypeUInt: return {i, "uint", std::to_string(read<uint32_t>(value))};
  case MTLDataTypeLong: return {i, "long", std::to_string(read<int64_t>(value))};
  case MTLDataTypeULong: return {i, "ulong", std::to_string(read<uint64_t>(value))};
  case MTLDataTypeFloat: return {i, "float", text_of(read<float>(value))};
  case MTLDataTypeHalf: return {i, "half", text_of(read<c10::Half>(value))};
  case MTLDataTypeBFloat: {
    const uint32_t bits = uint32_t{read<uint16_t>(value)} << 16;
    return {i, "bfloat", text_of(read<float>(&bits))};
  }
  default: fail("function-constant", c10::str("function constant ", index, ": MTLDataType ", static_cast<int>(type)));
  }
}

} // namespace mock

@interface MockBinding : MockObject <MTLBinding> {
@public
  const mock::Parameter* parameter; // of a program, which stays
}
@end
@implementation MockBinding
- (NSString*)name {
  return mock::nsstring(parameter->name);
}
- (MTLBindingType)type {
  return parameter->kind == "buffer" ? MTLBindingTypeBuffer : MTLBindingTypeThreadgroupMemory;
}
- (NSUInteger)index {
  return parameter->index;
}
- (BOOL)isUsed {
  return YES;
}
@end

@implementation MTLComputePipelineReflection
MOCK_STATE_METHODS(MTLComputePipelineReflection)
- (NSArray<id<MTLBinding>>*)bindings {
  return mock::state<mock::MTLComputePipelineReflectionState>(self).bindings.get();
}
@end

MTLComputePipelineReflection* mock::reflect(MockPipeline* pipeline) {
  NSMutableArray* bindings = [NSMutableArray array];
  for (const Parameter& parameter : pipeline->kernel->parameters) {
    if (parameter.kind == "builtin" || !uses(pipeline, parameter)) continue;
    MockBinding* binding = [[MockBinding alloc] autorelease];
    binding->parameter = &parameter;
    [bindings addObject:binding];
  }
  MTLComputePipelineReflection* reflection = [[[MTLComputePipelineReflection alloc] init] autorelease];
  state<MTLComputePipelineReflectionState>(reflection).bindings.set(bindings);
  return reflection;
}

@implementation MTLCompileOptions
MOCK_STATE_METHODS(MTLCompileOptions)
MOCK_OBJECT(MTLCompileOptions, NSDictionary*, preprocessorMacros, setPreprocessorMacros)
MOCK_VALUE(MTLCompileOptions, BOOL, fastMathEnabled, setFastMathEnabled)
MOCK_VALUE(MTLCompileOptions, MTLMathMode, mathMode, setMathMode)
MOCK_VALUE(MTLCompileOptions, MTLMathFloatingPointFunctions, mathFloatingPointFunctions, setMathFloatingPointFunctions)
MOCK_VALUE(MTLCompileOptions, MTLLanguageVersion, languageVersion, setLanguageVersion)
MOCK_VALUE(MTLCompileOptions, BOOL, preserveInvariance, setPreserveInvariance)
@end

@implementation MTLComputePipelineDescriptor
MOCK_STATE_METHODS(MTLComputePipelineDescriptor)
MOCK_OBJECT(MTLComputePipelineDescriptor, NSString*, label, setLabel)
MOCK_OBJECT(MTLComputePipelineDescriptor, id<MTLFunction>, computeFunction, setComputeFunction)
MOCK_OBJECT(MTLComputePipelineDescriptor, NSArray*, binaryArchives, setBinaryArchives)
MOCK_VALUE(MTLComputePipelineDescriptor, BOOL, supportIndirectCommandBuffers, setSupportIndirectCommandBuffers)
MOCK_VALUE(MTLComputePipelineDescriptor, BOOL, threadGroupSizeIsMultipleOfThreadExecutionWidth,
           setThreadGroupSizeIsMultipleOfThreadExecutionWidth)
MOCK_VALUE(MTLComputePipelineDescriptor, NSUInteger, maxTotalThreadsPerThreadgroup, setMaxTotalThreadsPerThreadgroup)
@end

@implementation MTLIndirectCommandBufferDescriptor
MOCK_STATE_METHODS(MTLIndirectCommandBufferDescriptor)
MOCK_VALUE(MTLIndirectCommandBufferDescriptor, MTLIndirectCommandType, commandTypes, setCommandTypes)
MOCK_VALUE(MTLIndirectCommandBufferDescriptor, BOOL, inheritPipelineState, setInheritPipelineState)
MOCK_VALUE(MTLIndirectCommandBufferDescriptor, BOOL, inheritBuffers, setInheritBuffers)
MOCK_VALUE(MTLIndirectCommandBufferDescriptor, NSUInteger, maxKernelBufferBindCount, setMaxKernelBufferBindCount)
MOCK_VALUE(MTLIndirectCommandBufferDescriptor, NSUInteger, maxKernelThreadgroupMemoryBindCount,
           setMaxKernelThreadgroupMemoryBindCount)
@end

@implementation MTLBinaryArchiveDescriptor
MOCK_STATE_METHODS(MTLBinaryArchiveDescriptor)
MOCK_OBJECT(MTLBinaryArchiveDescriptor, NSURL*, url, setUrl)
@end

@implementation MTLIOCommandQueueDescriptor
MOCK_STATE_METHODS(MTLIOCommandQueueDescriptor)
MOCK_VALUE(MTLIOCommandQueueDescriptor, MTLIOCommandQueueType, type, setType)
@end

@implementation MTLFunctionConstantValues
MOCK_STATE_METHODS(MTLFunctionConstantValues)
- (void)setConstantValue:(const void*)value type:(MTLDataType)type atIndex:(NSUInteger)index {
  MOCK_RULE("function-constant", value, "function constant ", index, ": the value is null");
  mock::state<mock::MTLFunctionConstantValuesState>(self).values.insert_or_assign(
      index, mock::constant_of(value, type, index));
}
- (void)reset {
  mock::state<mock::MTLFunctionConstantValuesState>(self).values.clear();
}
@end
