// Memory that the CPU and the GPU share: files read to where a tensor stays, or used where they lie.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sys/mman.h>
#include <unistd.h>

#include <ATen/ops/from_blob.h>
#include <torch/library.h>

#include "metal/objc.h"
#include "metal/stream.h"

namespace foundry::metal {
namespace {

void check_contiguous(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_mps() && tensor.is_contiguous() && tensor.numel() > 0,
                    "expected a contiguous tensor on mps that isn't empty, got ", tensor.toString(), " ",
                    tensor.sizes());
}

// The memory of an MPS tensor as a tensor of the CPU, which keeps it; none where the CPU can't reach it (before
// torch 2.12). Torch's allocator hands memory on without waiting for the GPU, so this waits: until work with the tensor
// is encoded, its memory is the CPU's.
std::optional<at::Tensor> host_view(const at::Tensor& tensor) {
  check_contiguous(tensor);
  const Place at = place(tensor);
  if ([at.buffer storageMode] != MTLStorageModeShared) return std::nullopt;
  wait();
  char* memory = static_cast<char*>([at.buffer contents]) + at.offset;
  return at::from_blob(memory, tensor.sizes(), [tensor](void*) {}, at::TensorOptions().dtype(tensor.dtype()));
}

// `bytes` of an open file from `offset` on, as uint8 on MPS: the pages of the page cache that they lie in, for reading
// only. None where Metal refuses them.
std::optional<at::Tensor> map_file(int64_t fd, int64_t offset, int64_t bytes) {
  TORCH_CHECK_VALUE(fd >= 0 && offset >= 0 && bytes > 0, "expected a part of an open file");
  const auto page = static_cast<int64_t>(getpagesize());
  const int64_t start = offset / page * page;
  const auto length = static_cast<size_t>((offset + bytes - start + page - 1) / page * page);
  void* pages = mmap(nullptr, length, PROT_READ, MAP_SHARED, static_cast<int>(fd), start);
  TORCH_CHECK(pages != MAP_FAILED, "can't map a file: ", strerror(errno));
  id<MTLBuffer> buffer = nil;
  @autoreleasepool { // for what a driver makes on the way: threads of Python's have none
    buffer = [device() newBufferWithBytesNoCopy:pages
                                         length:length
                                        options:MTLResourceStorageModeShared
                                    deallocator:^(void* memory, NSUInteger size) {
                                      munmap(memory, size);
                                    }];
  }
  if (buffer == nil) {
    munmap(pages, length);
    return std::nullopt;
  }
  const c10::Device mps(c10::kMPS, 0);
  return at::for_blob(buffer, {bytes})
      .storage_offset(offset - start)
      .deleter([](void* owned) { [static_cast<id<MTLBuffer>>(owned) release]; })
      .options(at::TensorOptions().dtype(at::kByte).device(mps))
      .target_device(mps)
      .make_tensor();
}

// Bytes that Metal recommends a process to have on the GPU, and those that this one uses: mapped files too.
std::vector<int64_t> working_set() {
  const uint64_t all = [device() currentAllocatedSize], unused = std::min(all, unused_memory());
  return {static_cast<int64_t>([device() recommendedMaxWorkingSetSize]), static_cast<int64_t>(all - unused)};
}

} // namespace

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def("_metal_host_view(Tensor tensor) -> Tensor?", &host_view);
  m.def("_metal_working_set() -> int[]", &working_set);
  m.def("_metal_map(int fd, int offset, int bytes) -> Tensor?", &map_file);
}

} // namespace foundry::metal
