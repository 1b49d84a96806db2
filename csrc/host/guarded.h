// For tests: launches on copies of their tensors, which show what a kernel writes where it may not, and what it reads
// far from them.
#pragma once

#include <list>
#include <string>
#include <utility>
#include <vector>

#include "core/executor.h"

namespace foundry::host {

// The memory that a launch is given, copied between guard bytes, and these between pages that a kernel is noticed to
// touch; each tensor's whole storage once. Storages of more than 64 MiB are not.
class GuardedMemory {
public:
  explicit GuardedMemory(const LaunchRecord& record);
  // Where the kernel finds a tensor of the launch.
  void* address(const at::TensorBase& tensor) const;
  // Writes back what the launch may write. Throws if a byte of anything else has changed: of the guards, of a tensor
  // that it only reads, or of a storage in front of a view, behind it or between two; or if the pages beyond the guards
  // were read.
  void finish(const std::string& kernel);

private:
  struct Copy {
    char* original;
    size_t bytes;
    std::vector<std::pair<size_t, size_t>> written; // [begin, end) of tensors to be written, in order, none overlapping
    char *first, *last;                             // of the guards: what the kernel may touch unnoticed
    char* begin;                                    // of the copy, as aligned as the original, and near the last
    size_t slot = 0;                                // where a signal handler finds it

    explicit Copy(const at::TensorBase& tensor);
    ~Copy();
    Copy(const Copy&) = delete;
    Copy& operator=(const Copy&) = delete;
    // Position of the first byte that has changed and mustn't have, or that was touched outside of the guards; `end()`
    // if there is none.
    ptrdiff_t changed() const;
    ptrdiff_t touched() const;
    ptrdiff_t end() const;
  };
  std::list<Copy> copies_; // which stay where they are
};

} // namespace foundry::host
