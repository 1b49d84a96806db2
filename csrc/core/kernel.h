// What is launched: a Kernel names it, a Pipeline is its compiled form, a cache keeps one Pipeline per content.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace foundry {

class Executor;

// A value of a function constant, as MSL source text ("true", "4", "0.5f"). Text keeps identity and compilation exact.
struct Constant {
  int index;
  std::string type; // MSL scalar type, as the source declares it: "bool", "int", "float", ...
  std::string value;
  Constant(int index, bool value) : index(index), type("bool"), value(value ? "true" : "false") {}
  Constant(int index, int value) : index(index), type("int"), value(std::to_string(value)) {}
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

// Returns the pipeline for `kernel` on the executor of `device`, compiling it when no cache has it. Thread-safe:
// each pipeline is compiled once, and different ones side by side.
Pipeline& pipeline(c10::Device device, const Kernel& kernel);

// Grows whenever shader sources change; a pipeline held from an older generation is looked up again.
std::atomic<uint32_t>& source_generation();

// The pipelines of one op, found by a small index (dtype, format, ...) with no string work after the first call.
template <int N> class PipelineTable {
public:
  template <class MakeKernel> Pipeline& get(c10::Device device, int variant, MakeKernel&& make) {
    TORCH_INTERNAL_ASSERT(variant >= 0 && variant < N, "kernel variant ", variant, " of ", N);
    Slot& slot = slots_[device_slot(device)][variant];
    const uint32_t now = source_generation().load(std::memory_order_acquire);
    if (slot.generation.load(std::memory_order_acquire) == now) return *slot.pipeline.load(std::memory_order_relaxed);
    Pipeline& found = pipeline(device, make());
    slot.pipeline.store(&found, std::memory_order_relaxed);
    slot.generation.store(now, std::memory_order_release);
    return found;
  }

private:
  static int device_slot(c10::Device device) { return device.is_cpu() ? 0 : device.is_mps() ? 1 : 2; }
  struct Slot {
    std::atomic<Pipeline*> pipeline{nullptr};
    std::atomic<uint32_t> generation{0};
  };
  Slot slots_[3][N];
};

// The same for an op of so many variants that few of them are ever used: found by a number that tells them apart.
class PipelineMap {
public:
  template <class MakeKernel> Pipeline& get(c10::Device device, uint64_t variant, MakeKernel&& make) {
    const std::pair<uint64_t, int> key{variant, static_cast<int>(device.type())};
    const uint32_t now = source_generation().load(std::memory_order_acquire);
    {
      std::lock_guard lock(mutex_);
      if (auto found = slots_.find(key); found != slots_.end() && found->second.second == now)
        return *found->second.first;
    }
    Pipeline& found = pipeline(device, make());
    std::lock_guard lock(mutex_);
    slots_[key] = {&found, now};
    return found;
  }

private:
  std::mutex mutex_;
  std::map<std::pair<uint64_t, int>, std::pair<Pipeline*, uint32_t>> slots_; // with its generation of sources
};

// The MSL name of an activation dtype: "float", "half" or "bfloat".
const char* metal_type(c10::ScalarType dtype);

// 0, 1, 2 for float32, float16, bfloat16: the dtype's part of a variant index.
int dtype_index(c10::ScalarType dtype);

} // namespace foundry
