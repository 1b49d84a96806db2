// What a device makes: libraries, functions, pipelines, binary archives.
#pragma once

#include <set>

#include "objects.h"
#include "program.h"

using MockConstants = std::map<unsigned, foundry::Constant>;

@interface MockLibrary : MockLabelled <MTLLibrary> {
@public
  std::vector<std::shared_ptr<const mock::Program>>* programs; // one for each file that a metallib was linked of
}
@end

@interface MockFunction : MockLabelled <MTLFunction> {
@public
  std::shared_ptr<const mock::Program>* program;
  const mock::ProgramKernel* kernel; // in the program
  MockConstants* constants;
}
@end

@interface MockPipeline : MockObject <MTLComputePipelineState> {
@public
  std::shared_ptr<const mock::Program>* program;
  const mock::ProgramKernel* kernel;
  MockConstants* constants;
  foundry::Pipeline* compiled; // by the host executor; null: does nothing
  NSUInteger maxThreads;
  BOOL indirect;
  NSString* label;
}
@end

@interface MockArchive : MockLabelled <MTLBinaryArchive> {
@public
  std::set<std::string>* kernels; // identities
}
@end

@interface MockDevice : MockObject <MTLDevice> {
@public
  BOOL concurrent; // compilation
}
@end

namespace mock {

MockDevice* device();
std::string identity(MTLComputePipelineDescriptor* descriptor); // of the pipeline that is made of it
// Whether the kernel reads or writes the parameter: no function constant switches it off, and no buffer is left unread.
bool uses(const MockPipeline* pipeline, const Parameter& parameter);

} // namespace mock
