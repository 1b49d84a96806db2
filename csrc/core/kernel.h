// What is launched: a Kernel names it, a Pipeline is its compiled form, a cache keeps one Pipeline per content.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>

namespace foundry {

class Executor;

// A value of a function constant, as MSL source text ("true", "4", "0.5f"). Text keeps identity and compilation exact.
struct Constant {
  int index;
  std::string type; // MSL scalar type, as the source declares it: "bool", "int", "float", ...
  std::string value;
  Constant(int index, bool value) : index(index), type("bool"), value(value ? "true" : "false") {}
  Constant(int index, std::string type, std::string value)
      : index(index), type(std::move(type)), value(std::move(value)) {}
};

// The name of a kernel: a source file, a function in it and, for a template, its arguments. Nothing here is compiled.
struct Kernel {
  std::string file;                   // "rms_norm.metal", or the label that compile_shader registered
  std::string function;               // "rms_norm", qualified by its namespaces
  std::vector<std::string> arguments; // {"half", "float"}
  std::vector<Constant> constants;
  std::string signature; // alias of its argument list; default: function + "_msl_args"
  std::string host_name; // what the source itself names the kernel (compile_shader); empty: named by instantiation

  std::string entry() const; // "rms_norm<half, float>"
};

// A compiled kernel of one executor. Owned by the cache and never freed, so that pointers to it stay valid.
class Pipeline {
public:
  Pipeline(Executor& executor, Kernel kernel) : executor(executor), kernel(std::move(kernel)) {}
  virtual ~Pipeline() = default;
  Executor& executor;
  const Kernel kernel;
};

// The MSL name of an activation dtype: "float", "half" or "bfloat".
const char* metal_type(c10::ScalarType dtype);

// A template argument as an op knows it, compared by address and number: "half", "8", "true" or "Q8Kv<128>".
struct KernelArgument {
  static constexpr int64_t kNoNumber = INT64_MIN;
  const char* text = nullptr; // for the life of the process: a literal, or of a table
  int64_t number = kNoNumber;

  KernelArgument() = default;
  KernelArgument(const char* text) : text(text) {}
  KernelArgument(c10::ScalarType dtype) : text(metal_type(dtype)) {}
  KernelArgument(bool value) : text(value ? "true" : "false") {}
  KernelArgument(int number) : number(number) {}
  KernelArgument(const char* text, int64_t number) : text(text), number(number) {} // text<number>
  bool operator==(const KernelArgument&) const = default;
  std::string str() const;
};

// A Kernel as ops name it at each call: all that tells it from others, in words that cost nothing to make and compare.
// Two keys of one kernel (a literal has an address in each file) cost a second entry of the cache, and nothing else.
class KernelKey {
public:
  using Constants = std::initializer_list<std::pair<int, bool>>; // index below 32, value
  KernelKey(const char* file, const char* function, std::initializer_list<KernelArgument> arguments = {},
            Constants constants = {})
      : file_(file), function_(function) {
    add(arguments).set(constants);
  }
  KernelKey& add(std::initializer_list<KernelArgument> arguments) {
    TORCH_INTERNAL_ASSERT(count_ + arguments.size() <= kMostArguments, file_, ": too many template arguments");
    for (const KernelArgument& argument : arguments) arguments_[count_++] = argument;
    return *this;
  }
  KernelKey& set(Constants constants) {
    for (const auto& [index, value] : constants) given_ |= 1u << index, values_ |= uint32_t(value) << index;
    return *this;
  }
  bool operator==(const KernelKey& other) const;
  size_t hash() const;
  Kernel kernel() const;

private:
  static constexpr size_t kMostArguments = 14;
  const char *file_, *function_;
  uint32_t given_ = 0, values_ = 0; // constants, a bit for each index
  uint32_t count_ = 0;
  std::array<KernelArgument, kMostArguments> arguments_;
};

// The pipeline for a kernel on the executor of `device`, compiled when no cache has it. Thread-safe: each pipeline is
// compiled once, and different ones side by side. By key, no lock is taken and no text is made after the first call.
Pipeline& pipeline(c10::Device device, const Kernel& kernel);
Pipeline& pipeline(c10::Device device, const KernelKey& key);

// Grows whenever shader sources change; pipelines found by key before that are looked up again.
std::atomic<uint32_t>& source_generation();

// 0, 1, 2 for float32, float16, bfloat16.
int dtype_index(c10::ScalarType dtype);

} // namespace foundry
