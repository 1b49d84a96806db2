// Launches of a graph as indirect commands: captured once, replayed by a few calls.

#include <cstring>
#include <mutex>
#include <set>

#include "metal/hazards.h"
#include "metal/pipeline.h"
#include "metal/replay.h"
#include "metal/stream.h"

namespace foundry::metal {
namespace {

constexpr NSUInteger kSlot = 256;            // offset of an argument struct in the buffer that holds them all
constexpr int kFirstFamilyWithoutWarmUp = 9; // M3: before, see Plan::encode
constexpr size_t kMostCommands = 16384;      // of a command buffer, on any GPU

// Commands of one kind of dispatch, as an indirect command buffer has to be.
struct Commands {
  Ref<id<MTLIndirectCommandBuffer>> buffer;
  NSUInteger count = 0;
};

// A stretch of the graph in one of the two command buffers. Stretches are ordered by the serial encoder.
struct Stretch {
  bool threads;
  NSRange range;
};

// All that the GPU needs until it is done. Nothing of it changes once it is captured, so it may be in flight many
// times.
struct Plan {
  Commands groups, threads;
  std::vector<Stretch> stretches;
  Ref<id<MTLBuffer>> constants;                     // indirect commands have no setBytes
  std::vector<id<MTLResource>> read_only, writable; // of `tensors`
  std::vector<at::TensorBase> tensors;              // indirect commands retain nothing
  std::vector<id<MTLComputePipelineState>> pipelines;
  bool warm = false; // nothing to warm up

  bool allocate(c10::ArrayRef<CapturedLaunch> launches);
  void capture(c10::ArrayRef<CapturedLaunch> launches);
  void add(const CapturedLaunch& launch, Hazards& hazards, NSUInteger& constant);
  void encode(id<MTLComputeCommandEncoder> encoder) const;
};

Ref<id<MTLIndirectCommandBuffer>> make_commands(NSUInteger count, MTLIndirectCommandType type) {
  const Ref<MTLIndirectCommandBufferDescriptor*> descriptor([[MTLIndirectCommandBufferDescriptor alloc] init]);
  descriptor.get().commandTypes = type;
  descriptor.get().inheritBuffers = NO;
  descriptor.get().inheritPipelineState = NO;
  descriptor.get().maxKernelBufferBindCount = 31;
  descriptor.get().maxKernelThreadgroupMemoryBindCount = 31;
  return Ref<id<MTLIndirectCommandBuffer>>([device()
      newIndirectCommandBufferWithDescriptor:descriptor.get()
                             maxCommandCount:count
                                     options:MTLResourceStorageModeShared]);
}

bool Plan::allocate(c10::ArrayRef<CapturedLaunch> launches) {
  NSUInteger of_threads = 0, slots = 1;
  for (const CapturedLaunch& launch : launches) {
    of_threads += launch.grid.threads;
    for (const Binding& b : launch.bindings) slots += (b.size + kSlot - 1) / kSlot;
  }
  const NSUInteger of_groups = launches.size() - of_threads;
  if (of_threads) threads.buffer = make_commands(of_threads, MTLIndirectCommandTypeConcurrentDispatchThreads);
  if (of_groups) groups.buffer = make_commands(of_groups, MTLIndirectCommandTypeConcurrentDispatch);
  constants = Ref<id<MTLBuffer>>([device() newBufferWithLength:slots * kSlot options:MTLResourceStorageModeShared]);
  return constants && (threads.buffer || !of_threads) && (groups.buffer || !of_groups);
}

void Plan::add(const CapturedLaunch& launch, Hazards& hazards, NSUInteger& constant) {
  MetalPipeline& pipeline = metal(*launch.pipeline);
  Commands& commands = launch.grid.threads ? threads : groups;
  if (stretches.empty() || stretches.back().threads != launch.grid.threads) {
    stretches.push_back({launch.grid.threads, NSMakeRange(commands.count, 0)});
    hazards.clear();
  }
  stretches.back().range.length++;
  id<MTLIndirectComputeCommand> command = [commands.buffer.get() indirectComputeCommandAtIndex:commands.count++];
  id<MTLComputePipelineState> state = pipeline.state(threads_of(launch.grid), true);
  [command setComputePipelineState:state];
  pipelines.push_back(state);
  for (size_t i = 0; i < launch.bindings.size(); i++) {
    const Binding& b = launch.bindings[i];
    if (b.tensor) {
      const Place at = place(*b.tensor);
      if (!at.buffer) { // an empty tensor, where Metal wants something bound
        [command setKernelBuffer:constants.get() offset:0 atIndex:i];
        continue;
      }
      [command setKernelBuffer:at.buffer offset:at.offset atIndex:i];
      tensors.push_back(*b.tensor);
    } else if (b.bytes) {
      std::memcpy(static_cast<char*>([constants.get() contents]) + constant, b.bytes, b.size);
      [command setKernelBuffer:constants.get() offset:constant atIndex:i];
      constant += (b.size + kSlot - 1) / kSlot * kSlot;
    }
  }
  for (size_t i = 0; i < launch.threadgroup_memory.size(); i++)
    [command setThreadgroupMemoryLength:launch.threadgroup_memory[i] atIndex:i];
  if (hazards.wait(launch)) [command setBarrier];
  const MTLSize size = size_of(launch.grid.size), group = size_of(launch.grid.group);
  if (launch.grid.threads)
    [command concurrentDispatchThreads:size threadsPerThreadgroup:group];
  else
    [command concurrentDispatchThreadgroups:size threadsPerThreadgroup:group];
}

void Plan::capture(c10::ArrayRef<CapturedLaunch> launches) {
  @autoreleasepool {
    Hazards hazards;
    NSUInteger constant = 0;
    std::set<id<MTLBuffer>> read, written;
    for (const CapturedLaunch& launch : launches) {
      add(launch, hazards, constant);
      for (const Binding& b : launch.bindings)
        if (b.tensor) (b.access == Access::read ? read : written).insert(place(*b.tensor).buffer);
    }
    read.erase(nil); // of empty tensors
    written.erase(nil);
    for (id<MTLBuffer> buffer : written) {
      writable.push_back(buffer);
      read.erase(buffer);
    }
    read_only.assign(read.begin(), read.end());
    read_only.push_back(constants.get());
    const std::set<id<MTLComputePipelineState>> different(pipelines.begin(), pipelines.end());
    pipelines.assign(different.begin(), different.end());
    warm = family_number() >= kFirstFamilyWithoutWarmUp;
  }
}

void Plan::encode(id<MTLComputeCommandEncoder> encoder) const {
  if (!warm) { // M1 and M2 fail with an invalid resource unless the encoder has seen each pipeline
    for (id<MTLComputePipelineState> pipeline : pipelines) {
      [encoder setComputePipelineState:pipeline];
      [encoder dispatchThreadgroups:MTLSizeMake(0, 0, 0) threadsPerThreadgroup:MTLSizeMake(0, 0, 0)];
    }
  }
  [encoder useResources:read_only.data() count:read_only.size() usage:MTLResourceUsageRead];
  if (!writable.empty())
    [encoder useResources:writable.data() count:writable.size() usage:MTLResourceUsageRead | MTLResourceUsageWrite];
  for (const Stretch& stretch : stretches)
    [encoder executeCommandsInBuffer:(stretch.threads ? threads : groups).buffer.get() withRange:stretch.range];
}

class IndirectReplayer : public Replayer {
public:
  IndirectReplayer(std::shared_ptr<Plan> plan, c10::ArrayRef<CapturedLaunch> launches)
      : plan_(std::move(plan)), launches_(launches) {}
  ~IndirectReplayer() override { // on any thread: a garbage collector's, too
    for (StreamHandle stream : streams_) keep_until_done(stream, plan_);
  }

  void replay() override {
    StreamHandle stream = encode_on_stream([this](id<MTLComputeCommandEncoder> encoder) { encode_into(encoder); },
                                           launches_.size(), this, kGraphName);
    std::lock_guard<std::mutex> lock(mutex_);
    streams_.insert(stream);
  }

private:
  void encode_into(id<MTLComputeCommandEncoder> encoder) const {
    if (is_stand_in(encoder)) return launches_.encode(encoder);
    plan_->encode(encoder);
  }

  std::shared_ptr<Plan> plan_;
  EncodedLaunches launches_;
  std::mutex mutex_;
  std::set<StreamHandle> streams_; // of the replays: from torch 2.14 on each thread has one
};

std::unique_ptr<Replayer> indirect_replayer(c10::ArrayRef<CapturedLaunch> launches, std::string& why_not) {
  if (is_paravirtual()) { // it takes indirect commands and then fails on them
    why_not = "the GPU of a virtual machine runs no indirect commands";
    return nullptr;
  }
  if (launches.size() > kMostCommands) {
    why_not = "this one has more than " + std::to_string(kMostCommands) + " launches";
    return nullptr;
  }
  for (const CapturedLaunch& launch : launches) {
    const NSUInteger threads = threads_of(launch.grid);
    id<MTLComputePipelineState> state = metal(*launch.pipeline).state(threads, true);
    if (state && threads <= [state maxTotalThreadsPerThreadgroup]) continue;
    why_not = metal(*launch.pipeline).name + " can't be used in an indirect command buffer";
    return nullptr;
  }
  auto plan = std::make_shared<Plan>();
  if (!plan->allocate(launches)) {
    why_not = "this GPU makes no indirect command buffers";
    return nullptr;
  }
  plan->capture(launches);
  return std::make_unique<IndirectReplayer>(std::move(plan), launches);
}

const bool registered = (register_indirect(indirect_replayer), true);

} // namespace
} // namespace foundry::metal
