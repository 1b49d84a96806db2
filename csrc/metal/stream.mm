// The one file that includes torch's private MPS headers.
#include "metal/stream.h"

#include <atomic>

#include <ATen/ATen.h>
#include <torch/version.h>

#include <ATen/mps/MPSAllocatorInterface.h>
#include <ATen/mps/MPSDevice.h>
#include <ATen/mps/MPSProfiler.h>
#include <ATen/mps/MPSStream.h>

namespace foundry::metal {
namespace {

// About what a decoding step of a small model launches: one hand-over costs the GPU some 20 us.
std::atomic<int> interval{100};

thread_local int encoded = 0; // launches of this thread since the last hand-over: streams belong to threads

// Whether the calling thread's launches, `more` with these, are due to be handed over.
bool due(int more) {
  const int every = interval.load(std::memory_order_relaxed);
  encoded = every ? encoded + more : 0;
  if (every == 0 || encoded < every) return false;
  encoded = 0;
  return true;
}

// A concurrent encoder behind all that torch has encoded on its stream; torch makes another of its own when it needs
// one.
class OwnEncoder {
public:
  OwnEncoder(const OwnEncoder&) = delete;
  explicit OwnEncoder(at::mps::MPSStream* stream) {
    stream->endKernelCoalescing();
    encoder_ = [static_cast<id<MTLCommandBuffer>>(stream->commandBuffer())
        computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
  }
  ~OwnEncoder() { [encoder_ endEncoding]; } // also if something was thrown: else Metal aborts the process
  id<MTLComputeCommandEncoder> get() const { return encoder_; }

private:
  id<MTLComputeCommandEncoder> encoder_;
};

void synchronize(at::mps::SyncType how) {
  at::mps::MPSStream* stream = at::mps::getCurrentMPSStream();
  encoded = 0;
  at::mps::dispatch_sync_with_rethrow(stream->queue(), ^{
    @autoreleasepool {
      stream->synchronize(how);
    }
  });
}

} // namespace

id<MTLDevice> device() {
  id<MTLDevice> found = at::mps::MPSDevice::getInstance()->device();
  TORCH_CHECK(found != nil, "torch_foundry: there is no Metal device");
  return found;
}

Place place(const at::TensorBase& tensor) {
  // On MPS a storage's data is the buffer object (check_storage looks). An empty tensor may lie behind its end.
  id<MTLBuffer> buffer = static_cast<id<MTLBuffer>>(const_cast<void*>(tensor.storage().data()));
  const auto offset = static_cast<NSUInteger>(tensor.storage_offset()) * tensor.itemsize();
  return {buffer, tensor.numel() == 0 ? 0 : offset};
}

uint64_t unused_memory() {
  const at::mps::IMPSAllocator* allocator = at::mps::getIMPSAllocator();
  const uint64_t all = allocator->getTotalAllocatedMemory(), used = allocator->getCurrentAllocatedMemory();
  return all > used ? all - used : 0;
}

void check_storage() {
  static const bool object = [] {
    const at::Tensor zeros = at::zeros({64}, at::TensorOptions().device(at::kMPS).dtype(at::kInt));
    wait();
    const void* data = zeros.storage().data();
    if (!data || !*static_cast<void* const*>(data)) return false; // the zeros themselves: an object has a class
    // Ops ask const_data_ptr how a tensor is aligned: the object's address and the offset, right if this is.
    if (reinterpret_cast<uintptr_t>(data) % 16 != 0) return false;
    return static_cast<bool>([static_cast<id>(const_cast<void*>(data)) respondsToSelector:@selector(contents)]);
  }();
  TORCH_CHECK(object, "torch_foundry: torch ", TORCH_VERSION,
              " keeps tensors on mps in another way than those that torch_foundry was tested with (2.11 to 2.15), so "
              "its kernels can't be given them: install one of those, and build torch_foundry again");
}

bool is_stand_in(id<MTLComputeCommandEncoder> encoder) {
  return ![encoder respondsToSelector:@selector(executeCommandsInBuffer:withRange:)];
}

StreamHandle encode_on_stream(const std::function<void(id<MTLComputeCommandEncoder>)>& encode, int launches,
                              const void* profiled, const char* name, MTLDispatchType type) {
  at::mps::MPSStream* stream = at::mps::getCurrentMPSStream();
  const auto* work = &encode; // blocks copy what they capture
  const bool hand_over = due(launches);
  at::mps::dispatch_sync_with_rethrow(stream->queue(), ^{
    @autoreleasepool {
      auto& profiler = at::mps::getMPSProfiler();
      const bool profile = profiler.isOperationProfilingEnabled();
      id<MTLComputeCommandEncoder> encoder = stream->commandEncoder();
      if (profile) profiler.beginProfileKernel(profiled, name, at::TensorList());
      if (type == MTLDispatchTypeConcurrent && !is_stand_in(encoder))
        (*work)(OwnEncoder(stream).get());
      else
        (*work)(encoder);
      if (profile) profiler.endProfileKernel(profiled);
      if (hand_over) stream->synchronize(at::mps::SyncType::COMMIT); // does not wait
    }
  });
  return stream;
}

void keep_until_done(StreamHandle stream, std::shared_ptr<const void> object) {
  static_cast<at::mps::MPSStream*>(stream)->addCompletedHandler(^(id<MTLCommandBuffer>) {
    (void)object; // the block's copy goes with the block
  });
}

int set_commit_interval(int launches) {
  TORCH_CHECK_VALUE(launches >= 0, "expected 0 or a number of launches, got ", launches);
  return interval.exchange(launches);
}

void commit() { synchronize(at::mps::SyncType::COMMIT); }

void wait() { synchronize(at::mps::SyncType::COMMIT_AND_WAIT); }

} // namespace foundry::metal
