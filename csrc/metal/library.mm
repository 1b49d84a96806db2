#include "metal/library.h"

#include <atomic>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <regex>

#include <c10/util/BFloat16.h>
#include <c10/util/Exception.h>
#include <c10/util/Half.h>

#include "core/compiling.h"
#include "metal/archive.h"
#include "metal/batch.h"
#include "metal/prebuilt.h"
#include "metal/stream.h"

namespace foundry::metal {
namespace {

std::atomic<int> chosen_version{0}; // 0: the system's

int system_version() {
  if (@available(macOS 26.0, *)) return 400;
  if (@available(macOS 15.0, *)) return 320;
  return 310;
}

Ref<MTLCompileOptions*> compile_options() {
  Ref<MTLCompileOptions*> options([[MTLCompileOptions alloc] init]);
  // Raw values: the SDK may be older than the system.
  const int version = language_version();
  options.get().languageVersion = static_cast<MTLLanguageVersion>(((version / 100) << 16) + version / 10 % 10);
#if !defined(__MAC_OS_X_VERSION_MAX_ALLOWED) || __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
  if (@available(macOS 15.0, *)) {
    options.get().mathMode = MTLMathModeSafe;
    options.get().mathFloatingPointFunctions = MTLMathFloatingPointFunctionsPrecise; // the mode leaves these fast
    return options;
  }
#endif
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
  options.get().fastMathEnabled = NO;
#pragma clang diagnostic pop
  return options;
}

// Whether it is a template's instance, which the text doesn't name itself.
bool is_instance(const Kernel& kernel) { return kernel.host_name.empty() && !kernel.arguments.empty(); }

constexpr int kNewest = 400;

// The version of the language that `text` needs, by the compiler's messages or else by the versions that it asks for
// itself (`#if __METAL_VERSION__ >= 320`). 0: nothing says that it needs a newer one than `version`.
int needed_version(const std::string& messages, const std::string& text, int version) {
  std::smatch found;
  static const std::regex said("[Nn]eeds Metal (\\d)\\.(\\d)"); // by an #error
  if (std::regex_search(messages, found, said)) return std::stoi(found[1]) * 100 + std::stoi(found[2]) * 10;
  static const std::regex of_400("\\b(metal_tensor|MetalPerformancePrimitives|cooperative_tensor)\\b");
  if (version < 400 && std::regex_search(messages, of_400)) return 400;
  static const std::regex of_320("\\b(metal_logging|os_log|coherent|atomic_thread_fence)\\b");
  if (version < 320 && std::regex_search(messages, of_320)) return 320;
  static const std::regex asked("__METAL_VERSION__ *(?:>=|<) *(\\d+)");
  int needed = 0;
  for (auto each = std::sregex_iterator(text.begin(), text.end(), asked); each != std::sregex_iterator(); ++each)
    if (const int wanted = std::stoi((*each)[1]); wanted > version && (!needed || wanted < needed)) needed = wanted;
  return needed;
}

std::string system_with(int version) {
  return version <= 310 ? "macOS 14" : version <= 320 ? "macOS 15" : version <= 400 ? "macOS 26" : "a newer macOS";
}

// What to say before a compiler's messages if they come of a language that is too old; else `otherwise`.
std::string language_problem(const Source& source, const std::string& messages, const std::string& otherwise) {
  const int version = language_version();
  const int needed = version < kNewest ? needed_version(messages, source.text, version) : 0;
  if (needed <= version) return otherwise;
  return " needs Metal " + language_name(needed) + ", which " + system_with(needed) + " has, and " +
         (chosen_version.load() ? "TORCH_FOUNDRY_METAL_VERSION asks for" : "this macOS has") + " Metal " +
         language_name(version) + ":\n";
}

template <class T>
void set_value(MTLFunctionConstantValues* values, const Constant& constant, MTLDataType type, T value) {
  [values setConstantValue:&value type:type atIndex:static_cast<NSUInteger>(constant.index)];
}

float number(const std::string& text) {
  if (text == "NAN") return NAN;
  if (text == "INFINITY") return INFINITY;
  if (text == "-INFINITY") return -INFINITY;
  return std::strtof(text.c_str(), nullptr); // stops at the suffix
}

void set_constant(MTLFunctionConstantValues* values, const Constant& c) {
  const std::string& type = c.type;
  const auto whole = [&] { return std::strtoll(c.value.c_str(), nullptr, 10); };
  const auto natural = [&] { return std::strtoull(c.value.c_str(), nullptr, 10); };
  if (type == "bool") return set_value(values, c, MTLDataTypeBool, c.value != "false" && c.value != "0");
  if (type == "int" || type == "int32_t") return set_value(values, c, MTLDataTypeInt, static_cast<int32_t>(whole()));
  if (type == "uint" || type == "uint32_t")
    return set_value(values, c, MTLDataTypeUInt, static_cast<uint32_t>(natural()));
  if (type == "short" || type == "int16_t")
    return set_value(values, c, MTLDataTypeShort, static_cast<int16_t>(whole()));
  if (type == "ushort" || type == "uint16_t")
    return set_value(values, c, MTLDataTypeUShort, static_cast<uint16_t>(natural()));
  if (type == "char" || type == "int8_t") return set_value(values, c, MTLDataTypeChar, static_cast<int8_t>(whole()));
  if (type == "uchar" || type == "uint8_t")
    return set_value(values, c, MTLDataTypeUChar, static_cast<uint8_t>(natural()));
  if (type == "long" || type == "int64_t") return set_value(values, c, MTLDataTypeLong, static_cast<int64_t>(whole()));
  if (type == "ulong" || type == "uint64_t" || type == "size_t")
    return set_value(values, c, MTLDataTypeULong, static_cast<uint64_t>(natural()));
  if (type == "float") return set_value(values, c, MTLDataTypeFloat, number(c.value));
  if (type == "half") return set_value(values, c, MTLDataTypeHalf, c10::Half(number(c.value)));
  if (type == "bfloat") return set_value(values, c, MTLDataTypeBFloat, c10::BFloat16(number(c.value)));
  TORCH_CHECK(false, "torch_foundry: function constant ", c.index, " has type ", type, ", which can't be set");
}

uint32_t buffers_used(MTLComputePipelineReflection* reflection) {
  uint32_t used = 0;
  for (id<MTLBinding> binding in [reflection bindings])
    if ([binding type] == MTLBindingTypeBuffer && [binding isUsed] && [binding index] < 31)
      used |= 1u << [binding index];
  return used;
}

} // namespace

std::string library_name(const Kernel& kernel) {
  if (!is_instance(kernel)) return kernel.host_name.empty() ? kernel.entry() : kernel.host_name;
  std::string name = kernel.entry();
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

std::string library_text(const std::vector<const Source*>& sources, const std::vector<Kernel>& kernels) {
  std::string text, instances;
  for (const Source* source : sources) text += source->text;
  for (const Kernel& kernel : kernels) {
    const std::string entry = kernel.entry();
    if (is_instance(kernel))
      instances += "template [[host_name(\"" + library_name(kernel) + "\")]] [[kernel]] decltype(" + entry + ") " +
                   entry + ";\n";
  }
  return instances.empty() ? text : text + "\n#line 1 \"" + sources[0]->file + ": instance\"\n" + instances;
}

Ref<id<MTLLibrary>> compiled_library(const std::string& text_of, std::string& problem) {
  NSError* error = nil;
  const Ref<NSString*> written = string(text_of);
  const Ref<MTLCompileOptions*> options = compile_options();
  const CompileNotice notice;
  Ref<id<MTLLibrary>> library([device() newLibraryWithSource:written.get() options:options.get() error:&error]);
  if (!library) problem = text(error);
  return library;
}

bool has_prebuilt(const Source& source, const std::string& name) {
  return bool(prebuilt_library(source, name, language_version(), chosen_version.load() != 0));
}

int language_version() {
  const int chosen = chosen_version.load();
  return chosen ? chosen : system_version();
}

std::string language_name(int version) {
  return std::to_string(version / 100) + "." + std::to_string(version / 10 % 10);
}

void set_language_version(int version) {
  TORCH_CHECK_VALUE(version == 0 || version == 310 || version == 320 || version == 400,
                    "Metal version: expected 310, 320, 400 or 0 for the newest, got ", version);
  TORCH_CHECK_VALUE(version <= system_version(), "kernels can't be compiled as Metal ", language_name(version),
                    ": this macOS knows versions up to ", language_name(system_version()), ", and ",
                    system_with(version), " has that one");
  chosen_version.store(version);
}

Ref<id<MTLComputePipelineState>> make_pipeline(const Source& source, const Kernel& kernel, uint32_t& buffers,
                                               NSUInteger threads, bool indirect) {
  const std::string label = source.file + ": kernel " + kernel.entry();
  Ref<id<MTLComputePipelineState>> pipeline;
  std::string problem; // thrown outside of the pool, which an exception would leave full
  @autoreleasepool {
    NSError* error = nil;
    const Ref<NSString*> name = string(library_name(kernel));
    Ref<id<MTLLibrary>> library =
        prebuilt_library(source, library_name(kernel), language_version(), chosen_version.load() != 0);
    if (!library) library = batch_library(source, kernel);
    if (!library) {
      const std::string plain = " does not compile as Metal " + language_name(language_version()) + ":\n";
      library = compiled_library(library_text({&source}, {kernel}), problem);
      if (!library) problem = language_problem(source, problem, plain) + problem;
    }
    if (library) {
      const Ref<MTLFunctionConstantValues*> values([[MTLFunctionConstantValues alloc] init]);
      for (const Constant& constant : kernel.constants) set_constant(values.get(), constant);
      const Ref<id<MTLFunction>> function([library.get() newFunctionWithName:name.get()
                                                              constantValues:values.get()
                                                                       error:&error]);
      const Ref<MTLComputePipelineDescriptor*> descriptor([[MTLComputePipelineDescriptor alloc] init]);
      descriptor.get().computeFunction = function.get();
      descriptor.get().label = name.get();
      descriptor.get().supportIndirectCommandBuffers = indirect;
      descriptor.get().maxTotalThreadsPerThreadgroup = threads;
      MTLAutoreleasedComputePipelineReflection reflection = nil;
      constexpr auto kBindingInfo = static_cast<MTLPipelineOption>(1); // the name differs between SDKs
      if (function) pipeline = new_pipeline(descriptor.get(), kBindingInfo, &reflection, &error);
      if (pipeline) buffers = buffers_used(reflection);
      if (!pipeline && !indirect)
        problem = (function ? ": " : language_problem(source, text(error), ": ")) + text(error);
    }
  }
  TORCH_CHECK(problem.empty(), "torch_foundry: ", label, problem);
  return pipeline;
}

} // namespace foundry::metal
