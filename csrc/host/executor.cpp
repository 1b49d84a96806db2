// The host executor: translated Metal kernels, compiled by the system's C++ compiler, one fiber per GPU thread.
#include <atomic>
#include <cstring>
#include <dlfcn.h>
#include <mutex>
#include <optional>

#include <c10/util/Exception.h>
#include <torch/library.h>

#include "common/portable.h"
#include "core/executor.h"
#include "host/guarded.h"
#include "host/pipeline.h"
#include "host/runtime.h"
#include "host/toolchain.h"

namespace foundry::host {
namespace {

static_assert(simd_width == MSL_LANES, "shaders and the prelude have one number of lanes");

// The fiber runtime, itself compiled through the toolchain so that a sanitizer build needs no second extension.
struct Runtime {
  decltype(&msl_rt_launch) launch;
  decltype(&msl_rt_configure) configure;
  decltype(&msl_rt_flush_subnormals) flush_subnormals;
  decltype(&msl_rt_tensor_layout) tensor_layout;
  uint32_t abi;
};

void* open_library(const std::string& path, int flags) {
  void* library = dlopen(path.c_str(), RTLD_NOW | flags);
  TORCH_CHECK(library, "torch_foundry: cannot load ", path, ": ", dlerror());
  return library;
}

template <class Fn> Fn symbol(void* library, const char* name) {
  void* found = dlsym(library, name);
  TORCH_CHECK(found, "torch_foundry: ", dlerror());
  return reinterpret_cast<Fn>(found);
}

class HostExecutor : public Executor {
public:
  const char* name() const override { return "host"; }
  const std::string& family() const override { return family_; }

  std::unique_ptr<Pipeline> compile(const Source& source, const Kernel& kernel) override {
    runtime(); // kernels resolve its symbols when they are loaded
    std::string text;
    for (const Constant& c : kernel.constants)
      text += "#define MSL_FC_" + std::to_string(c.index) + " (" + c.value + ")\n";
    const std::string signature = kernel.signature.empty() ? kernel.function + "_msl_args" : kernel.signature;
    text += source.translated + "\nMSL_KERNEL(\"" + kernel.entry() + "\", " + signature + ", " + kernel.entry() + ")\n";
    const std::string label = source.file + ": kernel " + kernel.entry();
    void* library =
        open_library(compile_library(toolchain_, label, text, toolchain_.flags, "metal_prelude.h"), RTLD_LOCAL);
    const msl_module* module = symbol<const msl_module* (*)(void)>(library, "msl_get_module")();
    TORCH_CHECK(module->abi == runtime().abi, "torch_foundry: ", label,
                " was built for another version of the host runtime");
    return std::make_unique<HostPipeline>(*this, kernel, &module->kernels[module->nkernels - 1]);
  }

  void launch(Pipeline& pipeline, const LaunchRecord& record) override {
    auto& host = static_cast<HostPipeline&>(pipeline);
    void* buffers[MSL_MAX_BUFFERS];
    uint64_t bytes[MSL_MAX_BUFFERS];
    TORCH_CHECK(record.bindings.size() <= MSL_MAX_BUFFERS, pipeline.kernel.entry(), ": ", record.bindings.size(),
                " buffers, but Metal has ", MSL_MAX_BUFFERS);
    std::optional<GuardedMemory> guarded;
    if (guard_memory_) guarded.emplace(record);
    for (size_t i = 0; i < record.bindings.size(); i++) {
      const Binding& b = record.bindings[i];
      buffers[i] = !b.tensor ? const_cast<void*>(b.bytes)
                   : guarded ? guarded->address(*b.tensor)
                             : b.tensor->data_ptr();
      bytes[i] = b.tensor ? b.tensor->storage().nbytes() - b.tensor->storage_offset() * b.tensor->itemsize() : b.size;
    }
    msl_launch request{};
    request.kernel = host.entry;
    request.buffers = buffers;
    request.buffer_bytes = bytes;
    request.nbuffers = static_cast<uint32_t>(record.bindings.size());
    for (int i = 0; i < 3; i++) {
      request.grid[i] = record.grid.size[i];
      request.group[i] = record.grid.group[i];
    }
    request.grid_is_threads = record.grid.threads;
    request.threadgroup_bytes = record.threadgroup_memory.data();
    request.nthreadgroup = static_cast<uint32_t>(record.threadgroup_memory.size());
    char error[1024];
    TORCH_CHECK(runtime().launch(&request, error, sizeof error) == 0, error);
    if (guarded) guarded->finish(pipeline.kernel.entry());
  }

  bool has_tensors() override { return true; }

  void set_toolchain(Toolchain toolchain) { toolchain_ = std::move(toolchain); }

  void configure(int lane_order, uint64_t seed, int threads, int strict) {
    runtime().configure(lane_order, seed, threads, strict);
  }
  void flush_subnormals(bool flush) { runtime().flush_subnormals(flush); }
  void tensor_layout(uint32_t layout) { runtime().tensor_layout(layout); }
  void guard_memory(bool guard) { guard_memory_ = guard; }

private:
  const Runtime& runtime() {
    std::call_once(loaded_, [this] {
      TORCH_CHECK(!toolchain_.compiler.empty(), "torch_foundry: import torch_foundry before using its ops");
      std::string text;
      for (const std::string& file : toolchain_.runtime_sources) text += "#include \"" + file + "\"\n";
      const std::string path = compile_library(toolchain_, "the host runtime", text, toolchain_.runtime_flags);
      void* library = open_library(path, RTLD_GLOBAL);
      runtime_.launch = symbol<decltype(&msl_rt_launch)>(library, "msl_rt_launch");
      runtime_.abi = symbol<decltype(&msl_rt_abi)>(library, "msl_rt_abi")();
      runtime_.configure = symbol<decltype(&msl_rt_configure)>(library, "msl_rt_configure");
      runtime_.flush_subnormals = symbol<decltype(&msl_rt_flush_subnormals)>(library, "msl_rt_flush_subnormals");
      runtime_.tensor_layout = symbol<decltype(&msl_rt_tensor_layout)>(library, "msl_rt_tensor_layout");
    });
    return runtime_;
  }

  const std::string family_ = "host";
  Toolchain toolchain_;
  std::once_flag loaded_;
  Runtime runtime_{};
  std::atomic<bool> guard_memory_{false};
};

HostExecutor& instance() {
  static auto* executor = [] {
    auto* made = new HostExecutor; // never destroyed: kernels may run until the process ends
    register_executor(c10::DeviceType::CPU, *made);
    return made;
  }();
  return *executor;
}

void host_setup(std::vector<std::string> compiler, std::string built_by, std::string include_dir,
                std::string prelude_hash, std::vector<std::string> flags, std::vector<std::string> runtime_flags,
                std::vector<std::string> runtime_sources, std::vector<std::string> read_only_caches,
                std::string cache) {
  instance().set_toolchain({std::move(compiler),
                            std::move(built_by),
                            std::move(include_dir),
                            std::move(prelude_hash),
                            std::move(flags),
                            std::move(runtime_flags),
                            std::move(runtime_sources),
                            {std::move(read_only_caches), std::move(cache)}});
}

void host_configure(int64_t lane_order, int64_t seed, int64_t threads, bool strict) {
  instance().configure(static_cast<int>(lane_order), static_cast<uint64_t>(seed), static_cast<int>(threads), strict);
}

} // namespace

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def(
      "_host_setup(str[] compiler, str built_by, str include_dir, str prelude_hash, str[] flags, str[] runtime_flags, "
      "str[] runtime_sources, str[] read_only_caches, str cache) -> ()",
      &host_setup);
  m.def("_host_configure(int lane_order, int seed, int threads, bool strict) -> ()", &host_configure);
  m.def("_host_flush_subnormals(bool flush) -> ()", [](bool flush) { instance().flush_subnormals(flush); });
  m.def("_host_tensor_layout(int layout) -> ()",
        [](int64_t layout) { instance().tensor_layout(static_cast<uint32_t>(layout)); });
  m.def("_host_guard_memory(bool guard) -> ()", [](bool guard) { instance().guard_memory(guard); });
}

} // namespace foundry::host
