// A client without mistakes, for test_compiler.py: compiles MSL and runs one kernel.
#include <ATen/mps/MPSStream.h>

#include "descriptors.h"
#include "device_memory.h"

namespace mock {
namespace {

[[noreturn]] void raise(NSError* error) { TORCH_CHECK(false, text([error localizedDescription])); }

id<MTLLibrary> compiled(const std::string& source) {
  MTLCompileOptions* options = [[[MTLCompileOptions alloc] init] autorelease];
  options.mathMode = MTLMathModeSafe;
  options.mathFloatingPointFunctions = MTLMathFloatingPointFunctionsPrecise;
  options.languageVersion = MTLLanguageVersion3_1;
  NSError* error = nil;
  id<MTLLibrary> library = [device() newLibraryWithSource:nsstring(source) options:options error:&error];
  if (!library) raise(error);
  return [library autorelease];
}

std::vector<std::string> names_of(id<MTLLibrary> library) {
  std::vector<std::string> names;
  for (NSString* name in [library functionNames]) names.push_back(text(name));
  return names;
}

std::vector<std::string> compile(const std::string& source) {
  @autoreleasepool {
    return names_of(compiled(source));
  }
}

std::vector<std::string> load(const std::string& bytes) {
  @autoreleasepool {
    NSError* error = nil;
    dispatch_data_t data =
        dispatch_data_create(bytes.data(), bytes.size(), dispatch_get_main_queue(), DISPATCH_DATA_DESTRUCTOR_DEFAULT);
    id<MTLLibrary> library = [[device() newLibraryWithData:data error:&error] autorelease];
    dispatch_release(data);
    if (!library) raise(error);
    return names_of(library);
  }
}

MTLFunctionConstantValues* constants_of(const c10::Dict<int64_t, double>& constants, const std::string& type) {
  MTLFunctionConstantValues* values = [[[MTLFunctionConstantValues alloc] init] autorelease];
  for (const auto& entry : constants) {
    const auto index = static_cast<NSUInteger>(entry.key());
    const bool as_bool = entry.value() != 0;
    const int as_int = static_cast<int>(entry.value());
    const float as_float = static_cast<float>(entry.value());
    if (type == "bool") [values setConstantValue:&as_bool type:MTLDataTypeBool atIndex:index];
    if (type == "int") [values setConstantValue:&as_int type:MTLDataTypeInt atIndex:index];
    if (type == "float") [values setConstantValue:&as_float type:MTLDataTypeFloat atIndex:index];
  }
  return values;
}

// Runs `kernel` with one thread for each element of the first tensor; `constants` all have the MSL type `type`.
void run(const std::string& source, const std::string& kernel, const std::vector<at::Tensor>& buffers,
         const c10::Dict<int64_t, double>& constants, const std::string& type) {
  @autoreleasepool {
    NSError* error = nil;
    id<MTLFunction> function = [compiled(source) newFunctionWithName:nsstring(kernel)
                                                      constantValues:constants_of(constants, type)
                                                               error:&error];
    if (!function) raise(error);
    MTLComputePipelineDescriptor* descriptor = [[[MTLComputePipelineDescriptor alloc] init] autorelease];
    descriptor.computeFunction = [function autorelease];
    id<MTLComputePipelineState> pipeline = [device() newComputePipelineStateWithDescriptor:descriptor
                                                                                   options:MTLPipelineOptionNone
                                                                                reflection:nil
                                                                                     error:&error];
    if (!pipeline) raise(error);
    auto* stream = at::mps::getCurrentMPSStream();
    const auto* given = &buffers;
    at::mps::dispatch_sync_with_rethrow(stream->queue(), ^{
      @autoreleasepool {
        id<MTLComputeCommandEncoder> encoder = stream->commandEncoder();
        [encoder setComputePipelineState:pipeline];
        for (size_t i = 0; i < given->size(); i++) {
          const at::Tensor& tensor = (*given)[i];
          [encoder setBuffer:static_cast<id>(const_cast<void*>(tensor.storage().data()))
                      offset:static_cast<NSUInteger>(tensor.storage_offset() * tensor.element_size())
                     atIndex:i];
        }
        const auto threads = static_cast<NSUInteger>((*given)[0].numel());
        [encoder dispatchThreads:MTLSizeMake(threads, 1, 1) threadsPerThreadgroup:MTLSizeMake(32, 1, 1)];
      }
    });
    [pipeline release]; // the command buffer holds it
  }
}

TORCH_LIBRARY_FRAGMENT(mock_metal, m) {
  m.def("compile(str source) -> str[]", &compile);
  m.def("load(str bytes) -> str[]", &load);
  m.def("run(str source, str kernel, Tensor[] buffers, Dict(int, float) constants, str type) -> ()", &run);
}

} // namespace
} // namespace mock
