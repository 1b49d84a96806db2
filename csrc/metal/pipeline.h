// A kernel as Metal runs it, and what a launch of it must fulfil.
#pragma once

#include <mutex>
#include <vector>

#include "metal/library.h"

namespace foundry::metal {

class MetalPipeline : public Pipeline {
public:
  MetalPipeline(Executor& executor, Kernel kernel, Ref<id<MTLComputePipelineState>> state, uint32_t buffers);

  // The same kernel for indirect command buffers, made when it is first asked for; nil if the driver refuses it.
  id<MTLComputePipelineState> indirect();

  const Ref<id<MTLComputePipelineState>> state;
  const std::string name;
  const NSUInteger max_threads;
  const NSUInteger static_memory; // threadgroup memory that the kernel declares itself, bytes
  const uint32_t buffers;         // a bit for each index that has to be bound

private:
  std::once_flag asked_;
  Ref<id<MTLComputePipelineState>> indirect_;
};

inline MetalPipeline& metal(Pipeline& pipeline) { return static_cast<MetalPipeline&>(pipeline); }
inline MTLSize size_of(const std::array<uint32_t, 3>& size) { return MTLSizeMake(size[0], size[1], size[2]); }

// Throws for what Metal would abort the process for.
void check(const MetalPipeline& pipeline, const LaunchRecord& record);

// Argument structs of a launch that are too long for setBytes, in the order of their buffer indices. Usually none.
// What was encoded with them keeps them.
using LongBytes = std::vector<Ref<id<MTLBuffer>>>;
LongBytes long_bytes(const MetalPipeline& pipeline, const LaunchRecord& record); // throws where there is no memory

// Encodes a launch that was checked.
void encode(id<MTLComputeCommandEncoder> encoder, const MetalPipeline& pipeline, const LaunchRecord& record,
            const LongBytes& long_bytes);

// Launches of a tape, to be encoded as often as one likes. They outlive this.
class EncodedLaunches {
public:
  explicit EncodedLaunches(c10::ArrayRef<RecordedLaunch> launches);
  void encode(id<MTLComputeCommandEncoder> encoder) const;
  int size() const { return static_cast<int>(launches_.size()); }

private:
  c10::ArrayRef<RecordedLaunch> launches_;
  std::vector<LongBytes> long_bytes_; // of each launch
};

// "apple7" (M1) and later.
const std::string& family();
int family_number();

} // namespace foundry::metal
