// For tests: launches on copies of their tensors, which show what a kernel writes where it may not.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/executor.h"

namespace foundry::host {

// The memory that a launch is given, copied between guard bytes, each tensor's whole storage once. Storages of more
// than 64 MiB are not.
class GuardedMemory {
public:
  explicit GuardedMemory(const LaunchRecord& record);
  // Where the kernel finds a tensor of the launch.
  void* address(const at::TensorBase& tensor) const;
  // Writes back what the launch may write. Throws if a byte of anything else has changed: of the guards, of a tensor
  // that it only reads, or of a storage in front of a view, behind it or between two.
  void finish(const std::string& kernel);

private:
  struct Copy {
    char* original;
    size_t bytes;
    std::vector<std::pair<size_t, size_t>> written; // [begin, end) of tensors to be written, in order, none overlapping
    std::unique_ptr<char[]> memory;
    char* begin; // of the copy, as aligned as the original

    explicit Copy(const at::TensorBase& tensor);
    // Position of the first byte that has changed and mustn't have; `end()` if there is none.
    ptrdiff_t changed() const;
    ptrdiff_t end() const;
  };
  std::vector<Copy> copies_;
};

} // namespace foundry::host
