// A kernel as Metal runs it, and what a launch of it must fulfil.
#pragma once

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "metal/library.h"

namespace foundry::metal {

class MetalPipeline : public Pipeline {
public:
  MetalPipeline(Executor& executor, Kernel kernel, Ref<id<MTLComputePipelineState>> state, uint32_t buffers);

  // The kernel for launches whose threadgroups have `threads` threads, and for indirect command buffers, which drivers
  // may refuse: then it is nil. Apple's compiler takes the registers that it likes, and the more it takes, the fewer
  // threads a threadgroup can have (384 on an M1 at worst). Where those are too few, the kernel is compiled again with
  // as many declared, once; what is left is what this GPU runs at most.
  id<MTLComputePipelineState> state(NSUInteger threads, bool indirect = false);

  const std::string name;
  const NSUInteger static_memory; // threadgroup memory that the kernel declares itself, bytes
  const uint32_t buffers;         // a bit for each index that has to be bound

private:
  id<MTLComputePipelineState> variant(NSUInteger declared, bool indirect);

  const Ref<id<MTLComputePipelineState>> plain_; // nothing declared
  const NSUInteger plain_threads_;
  std::mutex mutex_;
  std::map<std::pair<NSUInteger, bool>, Ref<id<MTLComputePipelineState>>> variants_; // others, as they were asked for
};

inline MetalPipeline& metal(Pipeline& pipeline) { return static_cast<MetalPipeline&>(pipeline); }
inline NSUInteger threads_of(const Grid& grid) { return NSUInteger{grid.group[0]} * grid.group[1] * grid.group[2]; }
inline MTLSize size_of(const std::array<uint32_t, 3>& size) { return MTLSizeMake(size[0], size[1], size[2]); }

// Throws for what Metal would abort the process for. From then on `state` compiles nothing for such a launch.
void check(MetalPipeline& pipeline, const LaunchRecord& record);

// Argument structs of a launch that are too long for setBytes, in the order of their buffer indices. Usually none.
// What was encoded with them keeps them.
using LongBytes = std::vector<Ref<id<MTLBuffer>>>;
LongBytes long_bytes(const MetalPipeline& pipeline, const LaunchRecord& record); // throws where there is no memory

// Encodes a launch that was checked.
void encode(id<MTLComputeCommandEncoder> encoder, MetalPipeline& pipeline, const LaunchRecord& record,
            const LongBytes& long_bytes);

// Launches of a graph, to be encoded as often as one likes. They outlive this.
class EncodedLaunches {
public:
  explicit EncodedLaunches(c10::ArrayRef<CapturedLaunch> launches);
  // With barriers if the encoder is a concurrent one.
  void encode(id<MTLComputeCommandEncoder> encoder) const;
  int size() const { return static_cast<int>(launches_.size()); }

private:
  c10::ArrayRef<CapturedLaunch> launches_;
  std::vector<LongBytes> long_bytes_; // of each launch
  std::vector<bool> waits_;           // whether each has to wait for those before it
};

// "apple7" (M1) and later.
const std::string& family();
int family_number(); // 7 and later; 0: none of those

bool is_paravirtual(); // the GPU of a virtual machine

} // namespace foundry::metal
