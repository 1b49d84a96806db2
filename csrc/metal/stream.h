// torch's MPS device and stream. Only stream.mm knows the headers of torch that are private.
#pragma once

#include <functional>
#include <memory>

#import <Metal/Metal.h>

#include <ATen/core/Tensor.h>

namespace foundry::metal {

id<MTLDevice> device();

// A tensor's place in memory: its storage's buffer, which the tensor keeps, and the offset in bytes.
struct Place {
  id<MTLBuffer> buffer;
  NSUInteger offset;
};
Place place(const at::TensorBase& tensor);

// Bytes that torch's allocator has of the GPU's memory and no tensor uses.
uint64_t unused_memory();

// Throws if this torch's tensors aren't what `place` takes them for. Looks once.
void check_storage();

// One of torch's streams, which live as long as the process.
using StreamHandle = void*;

// Whether torch captures the stream, so that the encoder stands for a real one and takes plain dispatches only.
bool is_stand_in(id<MTLComputeCommandEncoder> encoder);

// Runs `encode` on the current stream's queue with torch's shared, serial compute encoder, or with a concurrent one of
// its own where there is a real one. The encoder is valid inside only, and not to be ended there. `encode` must not
// allocate tensors, compile, or wait. `launches`: how many it encodes, for the policy of commits. `profiled`: a
// pipeline or a graph, and its name, for torch.mps.profiler. Returns the stream.
StreamHandle encode_on_stream(const std::function<void(id<MTLComputeCommandEncoder>)>& encode, int launches,
                              const void* profiled, const char* name, MTLDispatchType type = MTLDispatchTypeSerial);

// Lets go of `object` when the GPU is done with all that has been encoded on `stream`, whosever the calling thread's
// is. Not to be called while encoding.
void keep_until_done(StreamHandle stream, std::shared_ptr<const void> object);

// Launches after which what was encoded is handed to the GPU, so that it works while the CPU encodes on. Torch itself
// hands over only when somebody waits. 0: never. Returns what was set before.
int set_commit_interval(int launches);

// Hands over now what was encoded, without waiting.
void commit();

// Hands over what was encoded and waits until the GPU is done with it.
void wait();

} // namespace foundry::metal
