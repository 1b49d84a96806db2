// The launch builder: binds tensors, argument structs and threadgroup memory in order, then runs a grid.
#pragma once

#include <cstring>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include <c10/util/SmallVector.h>

#include "core/executor.h"

namespace foundry {

using OptionalTensor = std::optional<at::Tensor>;

class Launch {
public:
  explicit Launch(Pipeline& pipeline) : pipeline_(pipeline) {}
  Launch(c10::Device device, const KernelKey& key) : Launch(pipeline(device, key)) {}
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  Launch& in(const at::Tensor& tensor) { return bind(tensor, Access::read); }
  // As `in`; of weights an executor may fetch some ahead.
  Launch& weight(const at::Tensor& tensor) {
    bind(tensor, Access::read);
    bindings_.back().weight = true;
    return *this;
  }
  Launch& out(const at::Tensor& tensor) { return bind(tensor, Access::write); }
  Launch& inout(const at::Tensor& tensor) { return bind(tensor, Access::read_write); }
  // What is absent takes no part: nothing is bound in its place,
  Launch& in(const OptionalTensor& tensor) { return tensor ? in(*tensor) : none(); }
  Launch& out(const OptionalTensor& tensor) { return tensor ? out(*tensor) : none(); }
  Launch& inout(const OptionalTensor& tensor) { return tensor ? inout(*tensor) : none(); }
  // or another tensor, which the kernel doesn't read.
  Launch& in_or(const OptionalTensor& tensor, const at::Tensor& other) { return in(tensor ? *tensor : other); }
  Launch& none() {
    bindings_.push_back({});
    return *this;
  }
  // An argument struct by value, as a constant of the kernel. What goes beyond 512 bytes costs an allocation.
  template <class T> Launch& args(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>, "arguments cross to the GPU as bytes");
    return bytes(&value, sizeof(T));
  }
  Launch& bytes(const void* data, size_t size);
  // Threadgroup memory in bytes, rounded up to Metal's multiple of 16.
  Launch& tgmem(size_t size) {
    threadgroup_memory_.push_back(static_cast<uint32_t>((size + 15) / 16 * 16));
    return *this;
  }
  // Bytes that the op must move, for the counters, where the sum of its tensors would be wrong.
  Launch& min_bytes(int64_t bytes) {
    min_bytes_ = bytes;
    return *this;
  }
  void run(const Grid& grid);

private:
  Launch& bind(const at::Tensor& tensor, Access access) {
    bindings_.push_back({&tensor, nullptr, 0, access});
    return *this;
  }
  static constexpr size_t kInline = 512;
  Pipeline& pipeline_;
  c10::SmallVector<Binding, 12> bindings_;
  c10::SmallVector<uint32_t, 4> threadgroup_memory_;
  alignas(16) char inline_[kInline];
  size_t used_ = 0;
  std::vector<std::unique_ptr<char[]>> long_bytes_; // for which `inline_` has no room
  int64_t min_bytes_ = -1;
};

} // namespace foundry
