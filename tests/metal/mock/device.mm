#include "device.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <sstream>

#include "commands.h"
#include "descriptors.h"
#include "device_memory.h"
#include "host/pipeline.h"
#include "icb.h"

namespace {

constexpr const char* kMetallib = "MockMetallib "; // see load_metallib
constexpr const char* kArchive = "MockBinaryArchive\n";
constexpr NSInteger kCompileFailure = 3, kFunctionNotFound = 5;

void give(NSError** error, NSString* domain, NSInteger code, const std::string& text) {
  if (error) *error = mock::make_error(domain, code, text);
}

// MSL's type names that mean the same.
std::string plain_type(std::string type) {
  static const std::map<std::string, std::string> same{
      {"int32_t", "int"},  {"uint32_t", "uint"}, {"int16_t", "short"},    {"uint16_t", "ushort"},
      {"int8_t", "char"},  {"uint8_t", "uchar"}, {"int64_t", "long"},     {"uint64_t", "ulong"},
      {"size_t", "ulong"}, {"unsigned", "uint"}, {"unsigned int", "uint"}};
  if (type.rfind("metal::", 0) == 0) type = type.substr(7);
  auto found = same.find(type);
  return found == same.end() ? type : found->second;
}

// Why a function can't be made with these constants; empty if it can.
std::string constants_problem(const mock::Program& program, const mock::ProgramKernel& kernel,
                              const MockConstants& constants) {
  for (const auto& [index, declared] : program.constants) {
    auto given = constants.find(index);
    const std::string name = c10::str("function constant ", declared.name, " (index ", index, ")");
    if (given != constants.end() && plain_type(declared.type) != given->second.type)
      return c10::str(name, " has type ", declared.type, ", the value given is ", given->second.type);
    const bool read = std::count(kernel.reads.begin(), kernel.reads.end(), declared.name) > 0;
    if (given == constants.end() && declared.required && read) return name + " has no value";
  }
  return {};
}

MockFunction* make_function(MockLibrary* library, NSString* name, const MockConstants& constants) {
  for (const auto& program : *library->programs) {
    auto found = program->kernels.find(mock::text(name));
    if (found == program->kernels.end()) continue;
    MockFunction* function = [MockFunction alloc];
    function->program = new std::shared_ptr<const mock::Program>(program);
    function->kernel = &found->second;
    function->constants = new MockConstants(constants);
    return function;
  }
  return nil;
}

MockLibrary* make_library(const std::vector<std::string>& sources, int version, NSError** error) {
  try {
    std::vector<std::shared_ptr<const mock::Program>> programs;
    for (const std::string& source : sources) programs.push_back(mock::compile_program(source, version));
    MockLibrary* library = [MockLibrary alloc];
    library->programs = new std::vector<std::shared_ptr<const mock::Program>>(std::move(programs));
    return library;
  } catch (const mock::CompileError& wrong) {
    give(error, @"MTLLibraryErrorDomain", kCompileFailure, wrong.what());
    return nil;
  }
}

// The mock's metallib: `MockMetallib 310` (its level of the language), then MSL. A line that is the same ends a file
// that it was linked of and begins the next.
MockLibrary* load_metallib(const std::string& bytes, NSError** error) {
  const std::string head = bytes.substr(0, bytes.find('\n') + 1);
  if (head.rfind(kMetallib, 0) != 0) {
    give(error, @"MTLLibraryErrorDomain", 1, "Invalid library file");
    return nil;
  }
  const int version = std::atoi(head.c_str() + strlen(kMetallib));
  std::vector<std::string> sources;
  for (size_t at = head.size(), next; at < bytes.size(); at = next + head.size()) {
    next = std::min(bytes.find("\n" + head, at), bytes.size() - 1) + 1;
    sources.push_back(bytes.substr(at, next - at));
  }
  mock::trace("load metallib");
  return make_library(sources, version, error);
}

} // namespace

namespace mock {

MockDevice* device() {
  static MockDevice* made = [MockDevice alloc];
  return made;
}

std::string identity(MTLComputePipelineDescriptor* descriptor) {
  auto* function = checked<MockFunction>([descriptor computeFunction], "computeFunction");
  std::string text = [descriptor supportIndirectCommandBuffers] ? "indirect " : "";
  if (const NSUInteger threads = [descriptor maxTotalThreadsPerThreadgroup]) text += c10::str(threads, " threads ");
  text += foundry::content_hash((*function->program)->translated) + " " + function->kernel->entry;
  for (const auto& [index, constant] : *function->constants) text += c10::str(" ", index, "=", constant.value);
  return text;
}

bool uses(const MockPipeline* pipeline, const Parameter& parameter) {
  if (parameter.kind == "buffer" && pipeline->compiled)
    return static_cast<foundry::host::HostPipeline*>(pipeline->compiled)->entry->used >> parameter.index & 1;
  if (parameter.optional_on.empty()) return true;
  for (const auto& [index, declared] : (*pipeline->program)->constants)
    if (declared.name == parameter.optional_on) {
      auto given = pipeline->constants->find(index);
      return given != pipeline->constants->end() && given->second.value != "false" && given->second.value != "0";
    }
  return false; // switched by an expression: the host runtime knows
}

} // namespace mock

@implementation MockLibrary
- (void)finish {
  delete programs;
  [super finish];
}
- (id<MTLDevice>)device {
  return mock::device();
}
- (NSArray<NSString*>*)functionNames {
  NSMutableArray* names = [NSMutableArray array];
  for (const auto& program : *programs)
    for (const auto& [name, kernel] : program->kernels) [names addObject:mock::nsstring(name)];
  return names;
}
- (id<MTLFunction>)newFunctionWithName:(NSString*)name {
  return make_function(self, name, {});
}
- (id<MTLFunction>)newFunctionWithName:(NSString*)name
                        constantValues:(MTLFunctionConstantValues*)values
                                 error:(NSError**)error {
  const MockConstants given =
      values ? mock::state<mock::MTLFunctionConstantValuesState>(values).values : MockConstants{};
  MockFunction* function = make_function(self, name, given);
  if (!function) {
    give(error, @"MTLLibraryErrorDomain", kFunctionNotFound,
         "Function " + mock::text(name) + " was not found in the library");
    return nil;
  }
  const std::string problem = constants_problem(**function->program, *function->kernel, given);
  if (problem.empty()) return function;
  [function release];
  give(error, @"MTLLibraryErrorDomain", kCompileFailure, mock::text(name) + ": " + problem);
  return nil;
}
@end

@implementation MockFunction
- (void)finish {
  delete program;
  delete constants;
  [super finish];
}
- (id<MTLDevice>)device {
  return mock::device();
}
- (NSString*)name {
  return mock::nsstring(kernel->name);
}
- (MTLFunctionType)functionType {
  return MTLFunctionTypeKernel;
}
@end

@implementation MockPipeline
- (void)finish {
  delete program;
  delete constants;
  delete compiled;
  [label release];
}
- (id<MTLDevice>)device {
  return mock::device();
}
- (NSString*)label {
  return label;
}
- (NSUInteger)maxTotalThreadsPerThreadgroup {
  return maxThreads;
}
- (NSUInteger)threadExecutionWidth {
  return 32;
}
- (NSUInteger)staticThreadgroupMemoryLength {
  return 0; // the host runtime adds it to what is asked for at the launch
}
- (BOOL)supportIndirectCommandBuffers {
  return indirect;
}
@end

@implementation MockArchive
- (void)finish {
  delete kernels;
  [super finish];
}
- (id<MTLDevice>)device {
  return mock::device();
}
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor*)descriptor error:(NSError**)error {
  kernels->insert(mock::identity(descriptor));
  return YES;
}
- (BOOL)serializeToURL:(NSURL*)url error:(NSError**)error {
  std::ofstream file(mock::text([url path]));
  file << kArchive;
  for (const std::string& kernel : *kernels) file << kernel << "\n";
  if (file.flush()) return YES;
  give(error, @"MTLBinaryArchiveDomain", 1, "cannot write " + mock::text([url path]));
  return NO;
}
@end

@implementation MockDevice
- (BOOL)shouldMaximizeConcurrentCompilation {
  return concurrent;
}
- (void)setShouldMaximizeConcurrentCompilation:(BOOL)wanted {
  concurrent = wanted;
}
- (NSString*)name {
  return mock::settings().paravirtual ? @"Apple Paravirtual device" : @"Mock GPU";
}
- (uint64_t)registryID {
  return 1;
}
- (BOOL)hasUnifiedMemory {
  return YES;
}
- (BOOL)supportsFamily:(MTLGPUFamily)family {
  if (family == MTLGPUFamilyMetal3) return YES;
  return family >= MTLGPUFamilyApple1 && family < MTLGPUFamilyApple1 + 100 && family <= mock::settings().family;
}
- (NSUInteger)maxThreadgroupMemoryLength {
  return 32768;
}
- (NSUInteger)maxBufferLength {
  return static_cast<NSUInteger>(mock::settings().max_buffer);
}
- (uint64_t)recommendedMaxWorkingSetSize {
  return static_cast<uint64_t>(mock::settings().memory);
}
- (NSUInteger)currentAllocatedSize {
  return static_cast<NSUInteger>(mock::allocated());
}
- (MTLSize)maxThreadsPerThreadgroup {
  return MTLSizeMake(1024, 1024, 1024);
}

- (id<MTLLibrary>)newLibraryWithSource:(NSString*)source options:(MTLCompileOptions*)options error:(NSError**)error {
  MOCK_RULE("fast-math", options, "newLibraryWithSource: without options compiles with fast math");
  const auto& given = mock::state<mock::MTLCompileOptionsState>(options);
  MOCK_RULE("fast-math", given.mathMode == MTLMathModeSafe || !given.fastMathEnabled,
            "newLibraryWithSource: compiles with fast math");
  MOCK_RULE("fast-math",
            given.mathFloatingPointFunctions == MTLMathFloatingPointFunctionsPrecise || !given.fastMathEnabled,
            "newLibraryWithSource: functions of fast math (mathFloatingPointFunctions)");
  const auto version = static_cast<unsigned long>(given.languageVersion);
  std::string text;
  for (NSString* name in [given.preprocessorMacros.get() allKeys])
    text += "#define " + mock::text(name) + " " +
            mock::text([[given.preprocessorMacros.get() objectForKey:name] description]) + "\n";
  mock::trace(concurrent ? "compile side by side" : "compile");
  return make_library({text + mock::text(source)}, static_cast<int>((version >> 16) * 100 + (version & 0xffff) * 10),
                      error);
}

- (id<MTLLibrary>)newLibraryWithData:(dispatch_data_t)data error:(NSError**)error {
  return load_metallib(mock::data_of(data), error);
}

- (id<MTLLibrary>)newLibraryWithURL:(NSURL*)url error:(NSError**)error {
  std::ifstream file(mock::text([url path]));
  if (!file) {
    give(error, @"MTLLibraryErrorDomain", 6, "The file " + mock::text([url path]) + " couldn't be opened");
    return nil;
  }
  std::stringstream text;
  text << file.rdbuf();
  return load_metallib(text.str(), error);
}

- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
  MOCK_RULE("buffer-length", length > 0, "newBufferWithLength: 0");
  if (length > [self maxBufferLength]) return nil;
  return mock::make_buffer(length);
}

- (id<MTLBuffer>)newBufferWithBytes:(const void*)bytes length:(NSUInteger)length options:(MTLResourceOptions)options {
  MockBuffer* buffer = static_cast<MockBuffer*>([self newBufferWithLength:length options:options]);
  if (buffer) memcpy(buffer->bytes, bytes, length);
  return buffer;
}

- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                                             options:(MTLPipelineOption)options
                                                          reflection:
                                                              (MTLAutoreleasedComputePipelineReflection*)reflection
                                                               error:(NSError**)error {
  auto* function = mock::checked<MockFunction>([descriptor computeFunction], "computeFunction");
  const std::string name = function->kernel->name;
  if ([descriptor supportIndirectCommandBuffers] && !mock::settings().icb) {
    give(error, @"CompilerError", 2, "Compute function cannot be used with indirect command buffers");
    return nil;
  }
  const std::string problem = constants_problem(**function->program, *function->kernel, *function->constants);
  if (!problem.empty()) {
    give(error, @"CompilerError", 2, name + ": " + problem);
    return nil;
  }
  bool archived = false;
  for (id archive in [descriptor binaryArchives])
    archived |= mock::checked<MockArchive>(archive, "binaryArchives")->kernels->count(mock::identity(descriptor)) > 0;
  if (!archived && (options & MTLPipelineOptionFailOnBinaryArchiveMiss)) {
    give(error, @"MTLBinaryArchiveDomain", 2, name + " is in none of the binary archives");
    return nil;
  }
  try {
    std::vector<foundry::Constant> constants;
    for (const auto& [index, constant] : *function->constants) constants.push_back(constant);
    std::unique_ptr<foundry::Pipeline> compiled;
    if (mock::settings().run) compiled = mock::compile_kernel(**function->program, *function->kernel, constants);
    MockPipeline* pipeline = [MockPipeline alloc];
    pipeline->program = new std::shared_ptr<const mock::Program>(*function->program);
    pipeline->kernel = function->kernel;
    pipeline->constants = new MockConstants(*function->constants);
    pipeline->compiled = compiled.release();
    const auto limit = static_cast<NSUInteger>(mock::settings().max_threads);
    const NSUInteger wanted = [descriptor maxTotalThreadsPerThreadgroup];
    const auto unless_declared = static_cast<NSUInteger>(mock::settings().free_threads);
    pipeline->maxThreads = std::min(wanted ? wanted : unless_declared, limit);
    pipeline->indirect = [descriptor supportIndirectCommandBuffers];
    pipeline->label = [[descriptor label] copy];
    if (reflection && (options & 1)) *reflection = mock::reflect(pipeline); // MTLPipelineOptionBindingInfo
    mock::trace((archived ? "pipeline from archive " : "pipeline ") + name);
    return pipeline;
  } catch (const mock::CompileError& wrong) {
    give(error, @"CompilerError", 2, wrong.what());
    return nil;
  }
}

- (id<MTLIndirectCommandBuffer>)newIndirectCommandBufferWithDescriptor:(MTLIndirectCommandBufferDescriptor*)descriptor
                                                       maxCommandCount:(NSUInteger)count
                                                               options:(MTLResourceOptions)options {
  if (!mock::settings().icb) return nil;
  return mock::make_icb(descriptor, count);
}

- (id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor*)descriptor error:(NSError**)error {
  auto kernels = std::make_unique<std::set<std::string>>();
  if (NSURL* url = [descriptor url]) {
    std::ifstream file(mock::text([url path]));
    std::string line;
    if (!std::getline(file, line) || line + "\n" != kArchive) {
      give(error, @"MTLBinaryArchiveDomain", 1, "Invalid file: " + mock::text([url path]));
      return nil;
    }
    while (std::getline(file, line)) kernels->insert(line);
  }
  if (!mock::settings().archives) {
    give(error, @"MTLBinaryArchiveDomain", 3, "Binary archives are not supported on this device");
    return nil;
  }
  MockArchive* archive = [MockArchive alloc];
  archive->kernels = kernels.release();
  return archive;
}

- (id<MTLCommandQueue>)newCommandQueue {
  return [MockQueue alloc];
}
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void) { return [mock::device() retain]; }
