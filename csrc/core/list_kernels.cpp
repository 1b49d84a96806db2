// An executor that runs nothing and writes down which kernels it was asked for: those that a GPU of some family would
// run, found out where there is none.
#include <mutex>
#include <set>

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
    std::lock_guard<std::mutex> lock(mutex_);
    kernels_.insert(kernel.file + '\n' + kernel.entry());
    return std::make_unique<Pipeline>(*this, kernel);
  }
  void launch(Pipeline&, const LaunchRecord&) override {}
  std::vector<std::string> kernels() {
    std::lock_guard<std::mutex> lock(mutex_);
    return {kernels_.begin(), kernels_.end()};
  }

private:
  const std::string family_;
  std::mutex mutex_;
  std::set<std::string> kernels_;
};

Listing* current = nullptr; // never destroyed: pipelines point to it

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  // from here on ops on CPU tensors compute nothing, in the whole process
  m.def("_list_kernels(str family) -> ()", [](std::string family) {
    current = new Listing(std::move(family));
    register_executor(c10::DeviceType::CPU, *current);
    new_generation();
  });
  // "FILE\nENTRY" of each
  m.def("_listed_kernels() -> str[]", [] { return current ? current->kernels() : std::vector<std::string>{}; });
}

} // namespace
} // namespace foundry
