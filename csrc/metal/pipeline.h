// A kernel as Metal runs it, and what a launch of it must fulfil.
#pragma once

#include <mutex>

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

// Encodes a launch that was checked.
void encode(id<MTLComputeCommandEncoder> encoder, const MetalPipeline& pipeline, const LaunchRecord& record);

// "apple7" (M1) and later.
const std::string& family();
int family_number();

} // namespace foundry::metal
