// The Metal executor: kernels compiled by Apple's compiler, encoded on torch's own MPS stream.
#include "core/executor.h"

#include <torch/library.h>

#include "core/tape.h"
#include "library.h"
#include "stream.h"

namespace foundry::metal {
namespace {

constexpr uint32_t kMaxInlineBytes = 4096; // of setBytes
constexpr size_t kMaxBuffers = 31;

class MetalPipeline : public Pipeline {
public:
  MetalPipeline(Executor& executor, Kernel kernel, Ref<id<MTLComputePipelineState>> state)
      : Pipeline(executor, std::move(kernel)), state(std::move(state)), name(this->kernel.entry()),
        max_threads([this->state.get() maxTotalThreadsPerThreadgroup]) {}
  const Ref<id<MTLComputePipelineState>> state;
  const std::string name;
  const NSUInteger max_threads;
};

MTLSize size_of(const std::array<uint32_t, 3>& size) { return MTLSizeMake(size[0], size[1], size[2]); }

// What Metal would abort the process for.
void check(const MetalPipeline& pipeline, const LaunchRecord& record) {
  const auto& group = record.grid.group;
  const uint64_t threads = uint64_t{group[0]} * group[1] * group[2];
  TORCH_CHECK(threads > 0 && threads <= pipeline.max_threads, pipeline.name, ": a threadgroup of ", group[0], " x ",
              group[1], " x ", group[2], " threads, this GPU runs the kernel with at most ", pipeline.max_threads);
  TORCH_CHECK(record.bindings.size() <= kMaxBuffers, pipeline.name, ": ", record.bindings.size(),
              " buffers, but Metal has ", kMaxBuffers);
  for (const Binding& b : record.bindings) {
    TORCH_CHECK(b.tensor || b.size <= kMaxInlineBytes, pipeline.name, ": ", b.size, " bytes by value, but Metal takes ",
                kMaxInlineBytes);
    TORCH_CHECK(!b.tensor || b.tensor->is_mps(), pipeline.name, ": a tensor on ", b.tensor->device(),
                " among tensors on mps");
  }
  uint64_t memory = 0;
  for (uint32_t bytes : record.threadgroup_memory) memory += bytes;
  const uint64_t limit = [device() maxThreadgroupMemoryLength];
  TORCH_CHECK(memory <= limit, pipeline.name, ": ", memory, " bytes of threadgroup memory, this GPU has ", limit);
}

void encode(id<MTLComputeCommandEncoder> encoder, const MetalPipeline& pipeline, const LaunchRecord& record) {
  [encoder setComputePipelineState:pipeline.state.get()];
  for (size_t i = 0; i < record.bindings.size(); i++) {
    const Binding& b = record.bindings[i];
    if (b.tensor) {
      const Place at = place(*b.tensor);
      [encoder setBuffer:at.buffer offset:at.offset atIndex:i];
    } else if (b.bytes) {
      [encoder setBytes:b.bytes length:b.size atIndex:i];
    }
  }
  for (size_t i = 0; i < record.threadgroup_memory.size(); i++)
    [encoder setThreadgroupMemoryLength:record.threadgroup_memory[i] atIndex:i];
  const MTLSize size = size_of(record.grid.size), group = size_of(record.grid.group);
  if (record.grid.threads)
    [encoder dispatchThreads:size threadsPerThreadgroup:group];
  else
    [encoder dispatchThreadgroups:size threadsPerThreadgroup:group];
}

const MetalPipeline& metal(const Pipeline& pipeline) { return static_cast<const MetalPipeline&>(pipeline); }

// Encodes all launches again, in one block of the queue.
class EncodingReplayer : public Replayer {
public:
  explicit EncodingReplayer(c10::ArrayRef<RecordedLaunch> launches) : launches_(launches) {}
  void replay() override {
    encode_on_stream(
        [this](id<MTLComputeCommandEncoder> encoder) {
          for (const RecordedLaunch& launch : launches_) encode(encoder, metal(*launch.pipeline), launch.record());
        },
        static_cast<int>(launches_.size()));
  }

private:
  c10::ArrayRef<RecordedLaunch> launches_;
};

class MetalExecutor : public Executor {
public:
  const char* name() const override { return "metal"; }

  const std::string& family() const override {
    static const std::string name = [] {
      int newest = 0; // asked by number: the SDK may be older than the GPU
      for (int number = 7; number < 20; number++)
        if ([device() supportsFamily:static_cast<MTLGPUFamily>(1000 + number)]) newest = number;
      return newest ? "apple" + std::to_string(newest) : std::string("metal");
    }();
    return name;
  }

  std::unique_ptr<Pipeline> compile(const Source& source, const Kernel& kernel) override {
    return std::make_unique<MetalPipeline>(*this, kernel, make_pipeline(source, kernel));
  }

  void launch(Pipeline& pipeline, const LaunchRecord& record) override {
    const MetalPipeline& own = metal(pipeline);
    check(own, record);
    encode_on_stream([&](id<MTLComputeCommandEncoder> encoder) { encode(encoder, own, record); }, 1, own.state.get(),
                     own.name.c_str());
  }

  std::unique_ptr<Replayer> prepare(c10::ArrayRef<RecordedLaunch> launches) override {
    return std::make_unique<EncodingReplayer>(launches); // each launch was checked when it was recorded
  }
};

const bool registered = [] {
  register_executor(c10::DeviceType::MPS, *new MetalExecutor); // never destroyed: no order with Metal's own end
  return true;
}();

c10::Dict<std::string, std::string> info() {
  c10::Dict<std::string, std::string> out;
  @autoreleasepool {
    const int version = language_version();
    out.insert("name", text([device() name]));
    out.insert("language", std::to_string(version / 100) + "." + std::to_string(version / 10 % 10));
    out.insert("library", "jit");
    out.insert("threadgroup_memory_bytes", std::to_string([device() maxThreadgroupMemoryLength]));
    out.insert("working_set_bytes", std::to_string([device() recommendedMaxWorkingSetSize]));
    out.insert("max_buffer_bytes", std::to_string([device() maxBufferLength]));
    out.insert("unified_memory", [device() hasUnifiedMemory] ? "true" : "false");
    out.insert("icb", "off");
  }
  return out;
}

} // namespace

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def("_metal_info() -> Dict(str, str)", &info);
  m.def("_metal_commit_interval(int launches) -> ()",
        [](int64_t launches) { set_commit_interval(static_cast<int>(launches)); });
}

} // namespace foundry::metal
