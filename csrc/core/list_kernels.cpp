// An executor that runs nothing and writes down which kernels it was asked for, and how they would be launched: those
// that a GPU of some family would run, found out where there is none.
#include <algorithm>
#include <map>
#include <mutex>

#include <torch/library.h>

#include "core/kernel_list.h"

namespace foundry {
namespace {

class Listing : public Executor {
public:
  // Begins a new list, of kernels for GPUs of `family`. Calls of ops are not to overlap it.
  void start(std::string family) {
    std::lock_guard<std::mutex> lock(mutex_);
    family_ = std::move(family);
    threads_.clear();
  }
  const char* name() const override { return "listing"; }
  const std::string& family() const override { return family_; }
  std::unique_ptr<Pipeline> compile(const Source&, const Kernel& kernel) override {
    largest(kernel, 0);
    return std::make_unique<Pipeline>(*this, kernel);
  }
  void launch(Pipeline& pipeline, const LaunchRecord& record) override {
    const auto& [x, y, z] = record.grid.group;
    largest(pipeline.kernel, x * y * z);
  }
  bool keeps_subnormals(c10::Device) override { return true; } // nobody can be asked
  bool has_tensors() override { return true; }
  float tensor_error(c10::Device) override { return 0.0f; }
  std::vector<std::string> kernels() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> found;
    for (const auto& [name, threads] : threads_) found.push_back(c10::str(name, threads));
    return found;
  }

private:
  void largest(const Kernel& kernel, uint32_t threads) {
    std::lock_guard<std::mutex> lock(mutex_);
    uint32_t& seen = threads_[listed_name(kernel)];
    seen = std::max(seen, threads);
  }
  std::string family_;
  std::mutex mutex_;
  std::map<std::string, uint32_t> threads_; // of the largest threadgroup, by name and constants
};

Listing* const listing = new Listing; // never destroyed: pipelines point to it
Executor* before = nullptr;           // that of CPU tensors otherwise

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  // from here until `_stop_listing` ops on CPU tensors compute nothing, in the whole process
  m.def("_list_kernels(str family) -> ()", [](std::string family) {
    if (!before) before = &executor(c10::DeviceType::CPU);
    listing->start(std::move(family));
    register_executor(c10::DeviceType::CPU, *listing);
    new_generation();
  });
  m.def("_stop_listing() -> ()", [] {
    TORCH_CHECK(before, "torch_foundry: no kernels are listed");
    register_executor(c10::DeviceType::CPU, *before);
    new_generation();
  });
  // `listed_name` of each, and the threads of its largest threadgroup
  m.def("_listed_kernels() -> str[]", [] { return listing->kernels(); });
}

} // namespace
} // namespace foundry
