// Tells which of some buffers are written to, by taking the right to write from their pages.
#pragma once

#include <vector>

#include "objects.h"

namespace mock {

// One at a time: the GPU of the mock runs one command buffer after the other.
class WriteGuard {
public:
  explicit WriteGuard(const std::vector<MockBuffer*>& buffers);
  ~WriteGuard();
  WriteGuard(const WriteGuard&) = delete;
  WriteGuard& operator=(const WriteGuard&) = delete;
  MockBuffer* written() const; // the first that was written to, or nil
};

} // namespace mock
