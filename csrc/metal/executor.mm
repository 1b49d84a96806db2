// The Metal executor: kernels compiled by Apple's compiler, encoded on torch's own MPS stream.
#include "core/executor.h"

#include <atomic>

#include <torch/library.h>

#include "core/graph.h"
#include "core/kernel_list.h"
#include "metal/archive.h"
#include "metal/batch.h"
#include "metal/pipeline.h"
#include "metal/prebuilt.h"
#include "metal/replay.h"
#include "metal/stream.h"

namespace foundry::metal {
namespace {

// Encodes all launches again, in one block of the queue.
class EncodingReplayer : public Replayer {
public:
  EncodingReplayer(c10::ArrayRef<CapturedLaunch> launches, MTLDispatchType type) : launches_(launches), type_(type) {}
  void replay() override {
    encode_on_stream([this](id<MTLComputeCommandEncoder> encoder) { launches_.encode(encoder); }, launches_.size(),
                     this, kGraphName, type_);
  }

private:
  EncodedLaunches launches_;
  const MTLDispatchType type_;
};

// How graphs are replayed: encoded again, each launch behind the one before; the same with barriers only where launches
// depend on others; as indirect command buffers. The first by default: no measurement says that another is faster.
enum class Replays { serial, concurrent, indirect };
constexpr const char* kReplays[] = {"serial", "concurrent", "indirect"};
std::atomic<Replays> replays{Replays::serial};

void set_replays(const std::string& name) {
  for (size_t i = 0; i < std::size(kReplays); i++)
    if (name == kReplays[i]) return replays.store(static_cast<Replays>(i));
  TORCH_CHECK_VALUE(false, "expected serial, concurrent or indirect, got ", name);
}

// Why the kernels can't run on this GPU; empty if they can. A virtual machine's says that it has no family, and may
// run them all the same.
std::string gpu_problem() {
  if (family_number() > 0 || is_paravirtual()) return "";
  @autoreleasepool {
    return "torch_foundry's Metal kernels need the GPU of an M1 or later (Metal's family Apple7), and this one, " +
           text([device() name]) + ", is none: use device \"cpu\"";
  }
}

void check_gpu() {
  static const std::string problem = gpu_problem();
  TORCH_CHECK(problem.empty(), problem);
  if (is_paravirtual()) {
    TORCH_WARN_ONCE("torch_foundry: this is the GPU of a virtual machine, on which kernels may fail or be wrong: "
                    "`torch-foundry doctor` says whether they are right");
  }
  check_storage();
}

IndirectReplay& indirect_replay() {
  static IndirectReplay function = nullptr; // filled while the library is loaded
  return function;
}

class MetalExecutor : public Executor {
public:
  const char* name() const override { return "metal"; }

  const std::string& family() const override { return metal::family(); }

  // Those of an M5 and later GPUs. Metal has the functions on others too, by whose lanes they gain nothing.
  bool has_tensors() override {
    if (language_version() < 400 || family_number() < 10) return false;
    if (@available(macOS 26.2, *)) return true;
    return false;
  }

  std::unique_ptr<Pipeline> compile(const Source& source, const Kernel& kernel) override {
    check_gpu();
    uint32_t buffers = 0;
    auto state = make_pipeline(source, kernel, buffers);
    return std::make_unique<MetalPipeline>(*this, kernel, std::move(state), buffers);
  }

  void launch(Pipeline& pipeline, const LaunchRecord& record) override {
    MetalPipeline& own = metal(pipeline);
    check(own, record);
    const LongBytes bytes = long_bytes(own, record);
    encode_on_stream([&](id<MTLComputeCommandEncoder> encoder) { encode(encoder, own, record, bytes); }, 1, &own,
                     own.name.c_str());
  }

  std::unique_ptr<Replayer> prepare(c10::ArrayRef<CapturedLaunch> launches) override {
    // each launch was checked when it was captured
    const Replays how = replays;
    if (how == Replays::indirect) {
      std::string why_not = "this build has no indirect command buffers";
      if (const IndirectReplay make = indirect_replay())
        if (auto replayer = make(launches, why_not)) return replayer;
      TORCH_WARN_ONCE("torch_foundry: graphs are encoded again at each replay: ", why_not);
    }
    return std::make_unique<EncodingReplayer>(launches, how == Replays::concurrent ? MTLDispatchTypeConcurrent
                                                                                   : MTLDispatchTypeSerial);
  }
};

class Batches : public GroupCompiler {
public:
  std::shared_ptr<void> begin(const std::vector<Kernel>& kernels) override {
    check_gpu();
    return make_batch(kernels);
  }
  void finish(Pipeline& pipeline, uint32_t threads) override { metal(pipeline).state(threads); }
};

const bool registered = [] {
  register_executor(c10::DeviceType::MPS, *new MetalExecutor); // never destroyed: no order with Metal's own end
  register_group_compiler(c10::DeviceType::MPS, *new Batches);
  return true;
}();

c10::Dict<std::string, std::string> info() {
  c10::Dict<std::string, std::string> out;
  @autoreleasepool {
    out.insert("name", text([device() name]));
    out.insert("language", language_name(language_version()));
    const std::vector<int> prebuilt = metallib_versions();
    out.insert("library", prebuilt.empty() || prebuilt.front() > language_version() ? "jit" : "metallib");
    out.insert("threadgroup_memory_bytes", std::to_string([device() maxThreadgroupMemoryLength]));
    out.insert("working_set_bytes", std::to_string([device() recommendedMaxWorkingSetSize]));
    out.insert("max_buffer_bytes", std::to_string([device() maxBufferLength]));
    out.insert("unified_memory", [device() hasUnifiedMemory] ? "true" : "false");
    out.insert("problem", gpu_problem());
    out.insert("replays", kReplays[static_cast<int>(replays.load())]);
  }
  return out;
}

} // namespace

void register_indirect(IndirectReplay make) { indirect_replay() = make; }

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def("_metal_info() -> Dict(str, str)", &info);
  m.def("_metal_library(int version, str path, str[] files, str[] hashes) -> ()",
        [](int64_t version, const std::string& path, const std::vector<std::string>& files,
           const std::vector<std::string>& hashes) { add_metallib(static_cast<int>(version), path, files, hashes); });
  m.def("_metal_archive(str prefix) -> ()", &use_archive);
  m.def("_metal_save_archive() -> ()", &save_archive);
  m.def("_metal_replays(str how) -> ()", &set_replays);
  m.def("_metal_language(int version) -> ()", [](int64_t version) { set_language_version(static_cast<int>(version)); });
  m.def("_metal_commit_interval(int launches) -> int",
        [](int64_t launches) -> int64_t { return set_commit_interval(static_cast<int>(launches)); });
  m.def("_metal_commit() -> ()", &commit);
}

} // namespace foundry::metal
