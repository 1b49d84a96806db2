// An executor that runs nothing and writes down which kernels it was asked for, and how they would be launched: those
// that a GPU of some family would run, found out where there is none.
#include <algorithm>
#include <map>
#include <mutex>

#include <torch/library.h>

#include "core/executor.h"

namespace foundry {
namespace {

class Listing : public Executor {
public:
  explicit Listing(std::string family) : family_(std::move(family)) {}
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
    for (const auto& [name, threads] : threads_) found.push_back(c10::str(name, "\n", threads));
    return found;
  }

private:
  void largest(const Kernel& kernel, uint32_t threads) {
    std::string name = kernel.file + "\n" + kernel.entry() + "\n";
    for (const Constant& c : kernel.constants) name += c10::str(c.index, "=", c.value, " ");
    std::lock_guard<std::mutex> lock(mutex_);
    uint32_t& seen = threads_[name];
    seen = std::max(seen, threads);
  }
  const std::string family_;
  std::mutex mutex_;
  std::map<std::string, uint32_t> threads_; // of the largest threadgroup, by name and constants
};

Listing* current = nullptr; // never destroyed: pipelines point to it

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  // from here on ops on CPU tensors compute nothing, in the whole process
  m.def("_list_kernels(str family) -> ()", [](std::string family) {
    current = new Listing(std::move(family));
    register_executor(c10::DeviceType::CPU, *current);
    new_generation();
  });
  // "FILE\nENTRY\nCONSTANTS\nTHREADS" of each: constants as "0=true 3=false ", threads of the largest threadgroup
  m.def("_listed_kernels() -> str[]", [] { return current ? current->kernels() : std::vector<std::string>{}; });
}

} // namespace
} // namespace foundry
