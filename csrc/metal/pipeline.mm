#include "metal/pipeline.h"

#include <algorithm>
#include <bit>

#include <c10/util/Exception.h>

#include "metal/hazards.h"
#include "metal/stream.h"

namespace foundry::metal {
namespace {

constexpr uint32_t kMaxInlineBytes = 4096; // of setBytes
constexpr size_t kMaxBuffers = 31;
constexpr NSUInteger kMaxThreads = 1024; // of a threadgroup, on any GPU
constexpr char kNothing[16] = {};        // for an empty tensor, which has no buffer, where Metal wants something bound

} // namespace

MetalPipeline::MetalPipeline(Executor& executor, Kernel kernel, Ref<id<MTLComputePipelineState>> state,
                             uint32_t buffers)
    : Pipeline(executor, std::move(kernel)), name(this->kernel.entry()),
      static_memory([state.get() staticThreadgroupMemoryLength]), buffers(buffers), plain_(std::move(state)),
      plain_threads_([plain_.get() maxTotalThreadsPerThreadgroup]) {}

id<MTLComputePipelineState> MetalPipeline::state(NSUInteger threads, bool indirect) {
  id<MTLComputePipelineState> found = indirect ? variant(0, true) : plain_.get();
  if (threads <= (indirect ? [found maxTotalThreadsPerThreadgroup] : plain_threads_)) return found;
  return variant(std::min(std::bit_ceil(threads), kMaxThreads), indirect); // powers of two: few variants
}

id<MTLComputePipelineState> MetalPipeline::variant(NSUInteger declared, bool indirect) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::pair<NSUInteger, bool> key{declared, indirect};
  auto found = variants_.find(key);
  if (found == variants_.end()) {
    uint32_t same;
    found = variants_.emplace(key, make_pipeline(*find_source(kernel.file), kernel, same, declared, indirect)).first;
  }
  return found->second.get();
}

void check(MetalPipeline& pipeline, const LaunchRecord& record) {
  const auto& group = record.grid.group;
  const NSUInteger threads = threads_of(record.grid);
  const NSUInteger most = [pipeline.state(threads) maxTotalThreadsPerThreadgroup];
  TORCH_CHECK(threads > 0 && threads <= most, pipeline.name, ": a threadgroup of ", group[0], " x ", group[1], " x ",
              group[2], " threads, this GPU runs the kernel with at most ", most);
  TORCH_CHECK(record.bindings.size() <= kMaxBuffers, pipeline.name, ": ", record.bindings.size(),
              " buffers, but Metal has ", kMaxBuffers);
  uint32_t missing = pipeline.buffers;
  for (size_t i = 0; i < record.bindings.size(); i++)
    if (record.bindings[i].tensor || record.bindings[i].bytes) missing &= ~(1u << i);
  TORCH_CHECK(missing == 0, pipeline.name, ": buffer ", std::countr_zero(missing), " is not bound");
  for (const Binding& b : record.bindings) {
    TORCH_CHECK(!b.tensor || b.tensor->is_mps(), pipeline.name, ": a tensor on ", b.tensor->device(),
                " among tensors on mps");
  }
  uint64_t memory = pipeline.static_memory;
  for (uint32_t bytes : record.threadgroup_memory) memory += bytes;
  static const uint64_t limit = [device() maxThreadgroupMemoryLength];
  TORCH_CHECK(memory <= limit, pipeline.name, ": ", memory, " bytes of threadgroup memory, this GPU has ", limit);
}

LongBytes long_bytes(const MetalPipeline& pipeline, const LaunchRecord& record) {
  LongBytes made;
  for (const Binding& b : record.bindings) {
    if (b.tensor || b.size <= kMaxInlineBytes) continue;
    made.emplace_back([device() newBufferWithBytes:b.bytes length:b.size options:MTLResourceStorageModeShared]);
    TORCH_CHECK(made.back(), pipeline.name, ": Metal has no memory for ", b.size, " bytes of arguments by value");
  }
  return made;
}

void encode(id<MTLComputeCommandEncoder> encoder, MetalPipeline& pipeline, const LaunchRecord& record,
            const LongBytes& long_bytes) {
  size_t used = 0; // of `long_bytes`
  [encoder setComputePipelineState:pipeline.state(threads_of(record.grid))];
  for (size_t i = 0; i < record.bindings.size(); i++) {
    const Binding& b = record.bindings[i];
    if (b.tensor) {
      const Place at = place(*b.tensor);
      if (at.buffer)
        [encoder setBuffer:at.buffer offset:at.offset atIndex:i];
      else
        [encoder setBytes:kNothing length:sizeof kNothing atIndex:i];
    } else if (b.size > kMaxInlineBytes) {
      [encoder setBuffer:long_bytes[used++].get() offset:0 atIndex:i];
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

EncodedLaunches::EncodedLaunches(c10::ArrayRef<CapturedLaunch> launches) : launches_(launches) {
  Hazards hazards;
  for (const CapturedLaunch& launch : launches) {
    long_bytes_.push_back(long_bytes(metal(*launch.pipeline), launch.record()));
    waits_.push_back(hazards.wait(launch));
  }
}

void EncodedLaunches::encode(id<MTLComputeCommandEncoder> encoder) const {
  const bool concurrent = !is_stand_in(encoder) && [encoder dispatchType] == MTLDispatchTypeConcurrent;
  for (size_t i = 0; i < launches_.size(); i++) {
    if (concurrent && waits_[i]) [encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
    metal::encode(encoder, metal(*launches_[i].pipeline), launches_[i].record(), long_bytes_[i]);
  }
}

int family_number() {
  int newest = 0; // asked by number: the SDK may be older than the GPU
  for (int number = 7; number < 20; number++)
    if ([device() supportsFamily:static_cast<MTLGPUFamily>(1000 + number)]) newest = number;
  return newest;
}

bool is_paravirtual() {
  @autoreleasepool {
    return text([device() name]).find("Paravirtual") != std::string::npos;
  }
}

const std::string& family() {
  static const std::string name = [] {
    const int number = family_number();
    return number ? "apple" + std::to_string(number) : std::string("metal");
  }();
  return name;
}

} // namespace foundry::metal
