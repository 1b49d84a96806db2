// An executor in the place of the host's that compiles kernels for a GPU which is not there, by the very code of the CUDA
// executor, and launches nothing: whoever calls ops then learns whether their kernels compile.
#include <map>
#include <mutex>

#include <torch/library.h>

#include "core/executor.h"
#include "cuda/compiler.h"
#include "cuda/family.h"

namespace foundry::cuda {
namespace {

class CompileOnly : public Executor {
public:
  Toolchain toolchain;
  std::string arch;
  std::mutex mutex;
  std::map<std::string, int64_t> bytes; // of the cubin, by kernel

  const char* name() const override { return "compile only"; }
  const std::string& family() const override { return arch; }
  std::unique_ptr<Pipeline> compile(const Source& source, const Kernel& kernel) override {
    const std::string label = source.file + ": kernel " + kernel.entry();
    const std::string cubin = compile_cubin(toolchain, label, module_text(source, kernel, {}), arch);
    std::lock_guard<std::mutex> lock(mutex);
    std::string key = kernel.file + " " + kernel.entry();
    for (const Constant& c : kernel.constants) key += " " + std::to_string(c.index) + "=" + c.value;
    bytes[key] = static_cast<int64_t>(cubin.size());
    return std::make_unique<Pipeline>(*this, kernel);
  }
  void launch(Pipeline&, const LaunchRecord&) override {}
};

CompileOnly& instance() {
  static auto* executor = new CompileOnly;
  return *executor;
}

void setup(std::vector<std::string> nvrtc, std::string root, std::string prelude_hash, bool checked, std::string cache,
           std::string arch) {
  instance().toolchain = {std::move(nvrtc), std::move(root), std::move(prelude_hash), checked, {{}, std::move(cache)}};
  instance().arch = std::move(arch);
  register_executor(c10::DeviceType::CPU, instance());
}

c10::Dict<std::string, int64_t> compiled() {
  c10::Dict<std::string, int64_t> result;
  for (const auto& [kernel, size] : instance().bytes) result.insert(kernel, size);
  return result;
}

// A variant of a registered shader's kernel: the size of its cubin.
int64_t variant(const std::string& file, const std::string& function, int64_t references_in_memory,
                const std::vector<int64_t>& inline_bytes, int64_t max_threads) {
  Variant wanted;
  wanted.references_in_memory = static_cast<uint32_t>(references_in_memory);
  for (size_t i = 0; i + 1 < inline_bytes.size(); i += 2)
    wanted.inline_bytes.emplace_back(static_cast<uint32_t>(inline_bytes[i]), static_cast<uint32_t>(inline_bytes[i + 1]));
  wanted.max_threads = static_cast<uint32_t>(max_threads);
  Kernel kernel;
  kernel.file = file;
  kernel.function = function;
  const std::string text = module_text(*find_source(file), kernel, wanted);
  return static_cast<int64_t>(compile_cubin(instance().toolchain, file, text, instance().arch).size());
}

TORCH_LIBRARY(compile_only, m) {
  m.def("setup(str[] nvrtc, str root, str prelude_hash, bool checked, str cache, str arch) -> ()", &setup);
  m.def("compiled() -> Dict(str, int)", &compiled);
  m.def("family(str arch, str model) -> str",
        [](const std::string& arch, const std::string& model) { return family_of(arch, model); });
  m.def("variant(str file, str function, int references_in_memory, int[] inline_bytes, int max_threads) -> int",
        &variant);
}

} // namespace
} // namespace foundry::cuda
