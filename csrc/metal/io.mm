// Files read by Metal itself into tensors' buffers (MTLIOCommandQueue): an experiment, TORCH_FOUNDRY_METAL_IO.
#include <algorithm>
#include <string>

#include <torch/library.h>

#include "metal/objc.h"
#include "metal/stream.h"

namespace foundry::metal {
namespace {

constexpr NSUInteger kPiece = 16 << 20; // bytes of one command: several are under way at a time

id<MTLIOCommandQueue> make_queue(std::string& problem) {
  const Ref<MTLIOCommandQueueDescriptor*> descriptor([[MTLIOCommandQueueDescriptor alloc] init]);
  descriptor.get().type = MTLIOCommandQueueTypeConcurrent;
  NSError* error = nil;
  id<MTLIOCommandQueue> queue = [device() newIOCommandQueueWithDescriptor:descriptor.get() error:&error];
  if (queue == nil) problem = text(error);
  return queue;
}

// Reads `path` from `offset` on into a contiguous tensor whose memory is the CPU's, as after host_view, and waits.
// What went wrong, in words; empty if nothing did.
std::string read(const std::string& path, int64_t offset, const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(offset >= 0 && tensor.is_mps() && tensor.is_contiguous() && tensor.numel() > 0,
                    "expected a contiguous tensor on mps that isn't empty, got ", tensor.toString(), " ",
                    tensor.sizes());
  const Place to = place(tensor);
  const NSUInteger bytes = tensor.nbytes();
  std::string problem;
  @autoreleasepool {
    const Ref<id<MTLIOCommandQueue>> queue(make_queue(problem));
    if (!queue) return problem;
    NSError* error = nil;
    NSURL* url = [NSURL fileURLWithPath:string(path).get()];
    const Ref<id<MTLIOFileHandle>> file([device() newIOFileHandleWithURL:url error:&error]);
    if (!file) return text(error);
    id<MTLIOCommandBuffer> commands = [queue.get() commandBuffer];
    for (NSUInteger done = 0; done < bytes; done += kPiece)
      [commands loadBuffer:to.buffer
                      offset:to.offset + done
                        size:std::min(kPiece, bytes - done)
                sourceHandle:file.get()
          sourceHandleOffset:static_cast<NSUInteger>(offset) + done];
    [commands commit];
    [commands waitUntilCompleted];
    if ([commands status] != MTLIOStatusComplete) problem = text([commands error]);
  }
  return problem;
}

} // namespace

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def("_metal_read(str path, int offset, Tensor(a!) tensor) -> str", &read);
}

} // namespace foundry::metal
