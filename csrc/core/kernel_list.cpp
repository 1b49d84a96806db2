#include "core/kernel_list.h"

#include <algorithm>
#include <thread>

#include <torch/library.h>

#include "core/compiling.h"
#include "core/threads.h"

namespace foundry {
namespace {

thread_local KernelList* current = nullptr;

// That of meta tensors, while their thread fills a list. What is compiled and launched is only named.
class Recorder : public Executor {
public:
  const char* name() const override { return "recorder"; }
  const std::string& family() const override { return executor(current->device).family(); }
  std::unique_ptr<Pipeline> compile(const Source&, const Kernel& kernel) override {
    return std::make_unique<Pipeline>(*this, kernel);
  }
  void launch(Pipeline& pipeline, const LaunchRecord&) override {
    TORCH_CHECK(false, "torch_foundry: ", pipeline.kernel.entry(), " can't run on the meta device");
  }
};

Recorder& recorder() {
  static auto* made = new Recorder; // never destroyed: pipelines point to it
  return *made;
}

const bool registered = [] {
  register_executor(c10::DeviceType::Meta, recorder());
  return true;
}();

std::map<c10::DeviceType, GroupCompiler*>& group_compilers() { // filled while libraries are loaded
  static auto* map = new std::map<c10::DeviceType, GroupCompiler*>;
  return *map;
}

std::mutex mutex;
std::map<std::string, std::string>& groups() { // by file
  static auto* map = new std::map<std::string, std::string>;
  return *map;
}

} // namespace

std::string listed_name(const Kernel& kernel) {
  std::string name = kernel.file + "\n" + kernel.entry() + "\n";
  for (const Constant& c : kernel.constants) name += c10::str(c.index, "=", c.value, " ");
  return name + "\n";
}

KernelList::KernelList(const std::string& device) : device(device) {}

KernelList* KernelList::recording() { return current; }

void KernelList::start() {
  TORCH_CHECK(!current, "torch_foundry: a list of kernels is filled already in this thread");
  current = this;
}

void KernelList::stop() { current = nullptr; }

bool KernelList::take(const Pipeline& pipeline, const Grid& grid) {
  if (&pipeline.executor != &recorder()) return false;
  const std::string name = listed_name(pipeline.kernel);
  std::lock_guard<std::mutex> lock(mutex_);
  uint32_t& largest = entries_.try_emplace(name, Entry{pipeline.kernel, 0}).first->second.threads;
  largest = std::max(largest, grid.group[0] * grid.group[1] * grid.group[2]);
  return true;
}

void KernelList::ask(Asked shape) {
  std::lock_guard<std::mutex> lock(mutex_);
  asked_.insert(std::move(shape));
}

std::vector<KernelList::Asked> KernelList::asked() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {asked_.begin(), asked_.end()};
}

int64_t KernelList::size() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return static_cast<int64_t>(entries_.size());
}

std::vector<std::string> KernelList::names() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::string> found;
  for (const auto& [name, entry] : entries_) found.push_back(c10::str(name, entry.threads));
  return found;
}

void KernelList::compile() const {
  std::vector<Entry> wanted;
  std::vector<Kernel> kernels;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [name, entry] : entries_) wanted.push_back(entry), kernels.push_back(entry.kernel);
  }
  const auto found = group_compilers().find(device.type());
  GroupCompiler* const compiler = found == group_compilers().end() ? nullptr : found->second;
  const auto together = compiler ? compiler->begin(kernels) : nullptr;
  CompileProgress progress(static_cast<int>(wanted.size()));
  const size_t threads = std::max(4u, std::thread::hardware_concurrency()); // they mostly wait for a compiler
  side_by_side(wanted.size(), threads, [&](size_t i) {
    try {
      Pipeline& made = pipeline(device, wanted[i].kernel);
      if (compiler) compiler->finish(made, wanted[i].threads);
    } catch (...) { // said where it is needed
    }
    progress.one();
  });
}

void register_group_compiler(c10::DeviceType type, GroupCompiler& compiler) { group_compilers()[type] = &compiler; }

std::string group_of(const std::string& file) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = groups().find(file);
  return found == groups().end() ? file : found->second;
}

namespace {

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.class_<KernelList>("KernelList")
      .def(torch::init<std::string>())
      .def("start", &KernelList::start)
      .def("stop", &KernelList::stop)
      .def("size", &KernelList::size)
      .def("names", &KernelList::names)
      .def("asked", &KernelList::asked)
      .def("compile", &KernelList::compile);
  m.def("_group_source(str file, str group) -> ()", [](const std::string& file, const std::string& group) {
    std::lock_guard<std::mutex> lock(mutex);
    groups()[file] = group;
  });
}

} // namespace
} // namespace foundry
