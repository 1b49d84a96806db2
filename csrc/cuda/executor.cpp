// The CUDA executor: translated Metal kernels, compiled by NVRTC, launched on torch's current stream.
#include <atomic>
#include <map>
#include <mutex>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include "core/graph.h"
#include "cuda/family.h"
#include "cuda/module.h"

namespace foundry::cuda {
namespace {

constexpr int kMaxDevices = 64;

CUcontext context_of(int device) {
  static std::mutex mutex;
  static CUcontext contexts[kMaxDevices] = {};
  std::lock_guard<std::mutex> lock(mutex);
  if (!contexts[device]) {
    CUdevice handle = 0;
    check(driver().cuDeviceGet_(&handle, device), "no such CUDA device");
    check(driver().cuDevicePrimaryCtxRetain_(&contexts[device], handle), "the CUDA device cannot be used");
  }
  return contexts[device];
}

std::string arch_of(int device) {
  int major = 0, minor = 0;
  CUdevice handle = 0;
  check(driver().cuDeviceGet_(&handle, device), "no such CUDA device");
  check(driver().cuDeviceGetAttribute_(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle), "capability");
  check(driver().cuDeviceGetAttribute_(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle), "capability");
  return "sm_" + std::to_string(major) + std::to_string(minor);
}

std::string model_of(int device) {
  char name[256] = "";
  CUdevice handle = 0;
  check(driver().cuDeviceGet_(&handle, device), "no such CUDA device");
  check(driver().cuDeviceGetName_(name, sizeof(name), handle), "name");
  return name;
}

CUstream current_stream(int device) { return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)); }

bool is_capturing(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver().cuStreamIsCapturing_(stream, &status);
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true; // the legacy stream, while another one is captured
  check(result, "the CUDA stream cannot be asked");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void launch_prepared(const PreparedLaunch& prepared, CUstream stream, const std::string& kernel) {
  void* parameters[] = {prepared.parameter};
  CUlaunchAttribute early{};
  early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  early.value.programmaticStreamSerializationAllowed = 1;
  CUlaunchConfig config{};
  config.gridDimX = prepared.groups[0];
  config.gridDimY = prepared.groups[1];
  config.gridDimZ = prepared.groups[2];
  config.blockDimX = prepared.threads;
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = prepared.dynamic_memory;
  config.hStream = stream;
  config.attrs = &early;
  config.numAttrs = prepared.module->starts_early ? 1 : 0;
  const CUresult result = driver().cuLaunchKernelEx_(&config, prepared.module->function, parameters, nullptr);
  if (result != CUDA_SUCCESS) check(result, ("kernel " + kernel).c_str());
}

// A kernel's modules: one per device and variant, compiled and loaded when first asked for.
class CudaPipeline : public Pipeline {
public:
  CudaPipeline(Executor& executor, Kernel kernel, const Toolchain& toolchain, Source source)
      : Pipeline(executor, std::move(kernel)), name_(this->kernel.entry()), toolchain_(toolchain),
        source_(std::move(source)) {}
  const std::string& name() const { return name_; }

  // The default variant, without a lock once it is loaded.
  const Module& module(int device) {
    if (const Module* loaded = default_[device].load(std::memory_order_acquire)) return *loaded;
    const Module& found = module(device, {});
    default_[device].store(&found, std::memory_order_release);
    return found;
  }

  const Module& module(int device, const Variant& variant) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto& slot = modules_[{device, variant}];
    if (slot) return *slot;
    const std::string label = kernel.file + ": kernel " + name_;
    ContextGuard guard(context_of(device));
    TORCH_CHECK(!is_capturing(current_stream(device)), "torch_foundry: ", label,
                " has to be loaded, which a CUDA graph capture does not allow: run it once before the capture");
    const std::string text = module_text(source_, kernel, variant);
    const std::string cubin = compile_cubin(toolchain_, label, text, arch_of(device));
    slot = std::make_unique<Module>(load_module(label, cubin, context_of(device), variant));
    return *slot;
  }

  // The module for this launch on this device.
  const Module& module_for(int device, const LaunchRecord& record) {
    const Module* found = &module(device);
    Variant variant = variant_for(found->layout, record);
    if (!variant.is_default()) found = &module(device, variant);
    const auto& group = record.grid.group;
    const uint64_t threads = static_cast<uint64_t>(group[0]) * group[1] * group[2];
    if (threads > found->max_threads && threads <= MSL_MAX_THREADS) {
      variant.max_threads = MSL_MAX_THREADS; // the compiler has to spare registers
      found = &module(device, variant);
    }
    return *found;
  }

private:
  const std::string name_;
  const Toolchain& toolchain_;
  const Source source_;
  std::mutex mutex_;
  std::map<std::pair<int, Variant>, std::unique_ptr<Module>> modules_;
  std::atomic<const Module*> default_[kMaxDevices] = {};
};

// The device of a launch: that of its tensors, of which none may lie elsewhere.
int device_of(const std::string& kernel, const LaunchRecord& record) {
  int device = -1;
  for (size_t i = 0; i < record.bindings.size(); i++) {
    const at::TensorBase* tensor = record.bindings[i].tensor;
    if (!tensor) continue;
    TORCH_CHECK(tensor->is_cuda() && (device < 0 || device == tensor->get_device()), "kernel ", kernel, ": buffer ", i,
                " is on ", tensor->device().str(), ", expected ",
                device < 0 ? "cuda" : "cuda:" + std::to_string(device));
    device = tensor->get_device();
  }
  return device < 0 ? c10::cuda::current_device() : device;
}

// A graph as a CUDA graph: one kernel node after another. While torch captures a graph of its own, in which no other
// can be made or launched, the kernels go into that one.
class GraphReplayer : public Replayer {
public:
  GraphReplayer(int device, std::vector<PreparedLaunch> launches, std::vector<std::string> kernels)
      : device_(device), context_(context_of(device)), launches_(std::move(launches)), kernels_(std::move(kernels)) {
    for (PreparedLaunch& launch : launches_) launch.parameter = launch.owned.data();
  }

  ~GraphReplayer() override {
    if (executable_) driver().cuGraphExecDestroy_(executable_);
    if (graph_) driver().cuGraphDestroy_(graph_);
  }

  void replay() override {
    ContextGuard guard(context_);
    const CUstream stream = current_stream(device_);
    if (is_capturing(stream)) {
      for (size_t i = 0; i < launches_.size(); i++) launch_prepared(launches_[i], stream, kernels_[i]);
    } else {
      if (!executable_) instantiate();
      check(driver().cuGraphLaunch_(executable_, stream), "CUDA graph");
    }
  }

private:
  void instantiate() {
    const Driver& api = driver();
    check(api.cuGraphCreate_(&graph_, 0), "CUDA graph");
    CUgraphNode last = nullptr;
    const PreparedLaunch* previous = nullptr;
    for (const PreparedLaunch& launch : launches_) {
      void* parameters[] = {launch.parameter};
      CUDA_KERNEL_NODE_PARAMS node{};
      node.func = launch.module->function;
      node.gridDimX = launch.groups[0];
      node.gridDimY = launch.groups[1];
      node.gridDimZ = launch.groups[2];
      node.blockDimX = launch.threads;
      node.blockDimY = node.blockDimZ = 1;
      node.sharedMemBytes = launch.dynamic_memory;
      node.kernelParams = parameters;
      const CUgraphNode before = last;
      const bool early = before && previous->module->starts_early && launch.module->starts_early; // as on a stream
      check(api.cuGraphAddKernelNode_(&last, graph_, &before, before && !early ? 1 : 0, &node), "CUDA graph node");
      if (early) {
        CUgraphEdgeData edge{};
        edge.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
        edge.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
        check(api.cuGraphAddDependencies_v2_(graph_, &before, &last, &edge, 1), "CUDA graph edge");
      }
      previous = &launch;
    }
    check(api.cuGraphInstantiateWithFlags_(&executable_, graph_, 0), "CUDA graph");
  }

  int device_;
  CUcontext context_;
  std::vector<PreparedLaunch> launches_;
  std::vector<std::string> kernels_;
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
};

class CudaExecutor : public Executor {
public:
  const char* name() const override { return "cuda"; }

  const std::string& family() const override {
    static std::mutex mutex;
    static std::string families[kMaxDevices];
    const int device = c10::cuda::current_device();
    std::lock_guard<std::mutex> lock(mutex);
    if (families[device].empty()) families[device] = family_of(arch_of(device), model_of(device));
    return families[device];
  }

  std::unique_ptr<Pipeline> compile(const Source& source, const Kernel& kernel) override {
    TORCH_CHECK(!toolchain_.nvrtc.empty(), "torch_foundry: import torch_foundry before using its ops");
    auto pipeline = std::make_unique<CudaPipeline>(*this, kernel, toolchain_, source);
    pipeline->module(c10::cuda::current_device());
    return pipeline;
  }

  void launch(Pipeline& pipeline, const LaunchRecord& record) override {
    auto& kernel = static_cast<CudaPipeline&>(pipeline);
    const std::string& name = kernel.name();
    const int device = device_of(name, record);
    const Module& module = kernel.module_for(device, record);
    alignas(16) char parameter[kMaxParameterBytes];
    const PreparedLaunch prepared = prepare_launch(name, module, record, parameter);
    ContextGuard guard(module.context);
    launch_prepared(prepared, current_stream(device), name);
  }

  std::unique_ptr<Replayer> prepare(c10::ArrayRef<CapturedLaunch> launches) override {
    std::vector<PreparedLaunch> prepared;
    std::vector<std::string> names;
    int device = -1;
    for (const CapturedLaunch& captured : launches) {
      auto& kernel = static_cast<CudaPipeline&>(*captured.pipeline);
      const LaunchRecord record = captured.record();
      const int on = device_of(kernel.name(), record);
      if (device >= 0 && device != on) return Executor::prepare(launches); // a graph has one stream, these have several
      device = on;
      const Module& module = kernel.module_for(device, record);
      std::vector<char> parameter(kMaxParameterBytes);
      PreparedLaunch launch = prepare_launch(kernel.name(), module, record, parameter.data());
      parameter.resize(module.layout.bytes);
      launch.owned = std::move(parameter);
      prepared.push_back(std::move(launch));
      names.push_back(kernel.name());
    }
    if (prepared.empty()) return Executor::prepare(launches);
    return std::make_unique<GraphReplayer>(device, std::move(prepared), std::move(names));
  }

  void set_toolchain(Toolchain toolchain) { toolchain_ = std::move(toolchain); }

private:
  Toolchain toolchain_;
};

CudaExecutor& instance() {
  static auto* executor = [] {
    auto* made = new CudaExecutor; // never destroyed: pipelines refer to it until the process ends
    register_executor(c10::DeviceType::CUDA, *made);
    return made;
  }();
  return *executor;
}

void cuda_setup(std::vector<std::string> nvrtc, std::string root, std::string prelude_hash, bool checked,
                std::vector<std::string> read_only_caches, std::string cache) {
  instance().set_toolchain({std::move(nvrtc),
                            std::move(root),
                            std::move(prelude_hash),
                            checked,
                            {std::move(read_only_caches), std::move(cache)}});
}

} // namespace

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def("_cuda_setup(str[] nvrtc, str root, str prelude_hash, bool checked, str[] read_only_caches, str cache) -> ()",
        &cuda_setup);
}

} // namespace foundry::cuda
