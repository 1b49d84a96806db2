#include "core/kernel.h"

#include <algorithm>
#include <future>
#include <map>
#include <mutex>

#include <c10/util/Exception.h>

#include "core/executor.h"
#include "core/kernel_list.h"

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

// What keys have found: chains that only grow, so that they are read without a lock. An entry of an older generation is
// never found again; like its pipeline it stays.
struct Found {
  KernelKey key;
  size_t hash;
  c10::DeviceType device;
  uint32_t generation;
  Pipeline* pipeline;
  Found* next;
};
constexpr size_t kChains = 1024;
std::atomic<Found*> chains[kChains];

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

std::string KernelArgument::str() const {
  if (!text) return std::to_string(number);
  return number == kNoNumber ? text : std::string(text) + "<" + std::to_string(number) + ">";
}

bool KernelKey::operator==(const KernelKey& other) const {
  return file_ == other.file_ && function_ == other.function_ && given_ == other.given_ && values_ == other.values_ &&
         count_ == other.count_ &&
         std::equal(arguments_.begin(), arguments_.begin() + count_, other.arguments_.begin());
}

size_t KernelKey::hash() const {
  uint64_t h = reinterpret_cast<uintptr_t>(function_) ^ (uint64_t(values_) << 32);
  for (size_t i = 0; i < count_; i++) {
    h = (h ^ reinterpret_cast<uintptr_t>(arguments_[i].text) ^ (uint64_t(arguments_[i].number) << 40)) *
        0x9e3779b97f4a7c15u;
    h ^= h >> 32;
  }
  return h;
}

Kernel KernelKey::kernel() const {
  Kernel kernel{file_, function_, {}, {}, "", ""};
  for (size_t i = 0; i < count_; i++) kernel.arguments.push_back(arguments_[i].str());
  for (int index = 0; index < 32; index++)
    if (given_ >> index & 1) kernel.constants.emplace_back(index, bool(values_ >> index & 1));
  return kernel;
}

void register_executor(c10::DeviceType type, Executor& executor) { executors()[type] = &executor; }

Executor& executor(c10::Device device) {
  auto found = executors().find(device.type());
  // that of the meta device is one while a thread writes down which kernels it would run
  const bool known = found != executors().end() && (device.type() != c10::kMeta || KernelList::recording());
  TORCH_CHECK(known, "torch_foundry: this build has no executor for device '", device.str(), "'");
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

Pipeline& pipeline(c10::Device device, const KernelKey& key) {
  const size_t hash = key.hash();
  const uint32_t now = source_generation().load(std::memory_order_acquire);
  std::atomic<Found*>& chain = chains[hash % kChains];
  for (const Found* found = chain.load(std::memory_order_acquire); found; found = found->next)
    if (found->hash == hash && found->device == device.type() && found->generation == now && found->key == key)
      return *found->pipeline;
  Pipeline& made = pipeline(device, key.kernel());
  auto* found = new Found{key, hash, device.type(), now, &made, chain.load(std::memory_order_relaxed)};
  while (!chain.compare_exchange_weak(found->next, found, std::memory_order_release, std::memory_order_relaxed)) {
  }
  return made;
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
