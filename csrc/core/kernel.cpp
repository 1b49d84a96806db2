#include "core/kernel.h"

#include <future>
#include <map>
#include <mutex>

#include <c10/util/Exception.h>

#include "core/executor.h"

namespace foundry {
namespace {

std::map<c10::DeviceType, Executor*>& executors() {
  static auto* map = new std::map<c10::DeviceType, Executor*>;
  return *map;
}

// Identity within a process: content of the source, entry and constants. The executor adds compiler, flags and device.
std::string cache_key(const Executor& executor, const Source& source, const Kernel& kernel) {
  std::string key = std::string(executor.name()) + '\n' + source.hash + '\n' + kernel.entry() + '\n' +
                    kernel.signature + '\n' + kernel.host_name;
  for (const Constant& c : kernel.constants) key += '\n' + std::to_string(c.index) + '=' + c.value;
  return key;
}

using Entry = std::shared_future<Pipeline*>;
std::mutex mutex;
std::map<std::string, Entry>& cache() {
  static auto* map = new std::map<std::string, Entry>;
  return *map;
}

} // namespace

std::string Kernel::entry() const {
  if (arguments.empty()) return function;
  std::string text = function + "<";
  for (size_t i = 0; i < arguments.size(); i++) text += (i ? ", " : "") + arguments[i];
  return text + ">";
}

void register_executor(c10::DeviceType type, Executor& executor) { executors()[type] = &executor; }

Executor& executor(c10::Device device) {
  auto found = executors().find(device.type());
  TORCH_CHECK(found != executors().end(), "torch_foundry: this build has no executor for device '", device.str(), "'");
  return *found->second;
}

Pipeline& pipeline(c10::Device device, const Kernel& kernel) {
  Executor& runner = executor(device);
  const auto source = find_source(kernel.file);
  const std::string key = cache_key(runner, *source, kernel);
  std::promise<Pipeline*> promise;
  Entry entry;
  bool mine = false;
  {
    std::lock_guard<std::mutex> lock(mutex);
    auto [position, inserted] = cache().try_emplace(key);
    if (inserted) position->second = promise.get_future().share();
    mine = inserted;
    entry = position->second;
  }
  if (mine) {
    try {
      promise.set_value(runner.compile(*source, kernel).release()); // kept for the life of the process
    } catch (...) {
      promise.set_exception(std::current_exception());
      std::lock_guard<std::mutex> lock(mutex);
      cache().erase(key); // a failure is not remembered: a compiler may be installed meanwhile
    }
  }
  return *entry.get();
}

const char* metal_type(c10::ScalarType dtype) {
  constexpr const char* names[] = {"float", "half", "bfloat"};
  return names[dtype_index(dtype)];
}

int dtype_index(c10::ScalarType dtype) {
  switch (dtype) {
  case c10::ScalarType::Float: return 0;
  case c10::ScalarType::Half: return 1;
  case c10::ScalarType::BFloat16: return 2;
  default: TORCH_CHECK(false, "expected float32, float16 or bfloat16, got ", c10::toString(dtype));
  }
}

} // namespace foundry
