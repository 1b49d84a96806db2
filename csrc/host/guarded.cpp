#include "host/guarded.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <c10/util/Exception.h>

namespace foundry::host {
namespace {

constexpr size_t kGuard = 4096;    // bytes on either side: a row of most tests' tensors
constexpr size_t kAlign = 64;      // of torch's memory
constexpr size_t kMost = 64 << 20; // larger storages stay where they are: copies would take longer than kernels
// A NaN in every floating type, though none that arithmetic gives: what is read past the end shows too.
constexpr uint16_t kPattern = 0x7fff;

const char* guard() {
  static const auto* words = new std::vector<uint16_t>(kGuard / sizeof(uint16_t), kPattern);
  return reinterpret_cast<const char*>(words->data());
}

// The first byte of [a, a + bytes) that differs from b's, or `bytes`.
size_t difference(const char* a, const char* b, size_t bytes) {
  return std::memcmp(a, b, bytes) == 0 ? bytes : std::mismatch(a, a + bytes, b).first - a;
}

// The bytes of its storage from a tensor's first element to its last.
std::pair<size_t, size_t> span(const at::TensorBase& tensor) {
  if (tensor.numel() == 0) return {0, 0};
  int64_t last = tensor.storage_offset();
  for (int64_t d = 0; d < tensor.dim(); d++) last += (tensor.size(d) - 1) * tensor.stride(d);
  return {tensor.storage_offset() * tensor.itemsize(), (last + 1) * tensor.itemsize()};
}

char* base(const at::TensorBase& tensor) { return static_cast<char*>(tensor.storage().mutable_data()); }

} // namespace

GuardedMemory::Copy::Copy(const at::TensorBase& tensor)
    : original(base(tensor)), bytes(tensor.storage().nbytes()), memory(new char[bytes + 2 * (kGuard + kAlign)]) {
  const auto start = reinterpret_cast<uintptr_t>(memory.get() + kGuard);
  begin = memory.get() + kGuard + (reinterpret_cast<uintptr_t>(original) - start) % kAlign;
  std::memcpy(begin - kGuard, guard(), kGuard);
  std::memcpy(begin, original, bytes);
  std::memcpy(begin + bytes, guard(), kGuard);
}

ptrdiff_t GuardedMemory::Copy::end() const { return static_cast<ptrdiff_t>(bytes + kGuard); }

ptrdiff_t GuardedMemory::Copy::changed() const {
  if (const size_t at = difference(begin - kGuard, guard(), kGuard); at < kGuard)
    return static_cast<ptrdiff_t>(at) - static_cast<ptrdiff_t>(kGuard);
  size_t from = 0;
  const auto kept = [&](size_t to) { return from + difference(begin + from, original + from, to - from); };
  for (const auto& [start, stop] : written) {
    if (const size_t at = kept(start); at < start) return static_cast<ptrdiff_t>(at);
    from = stop;
  }
  if (const size_t at = kept(bytes); at < bytes) return static_cast<ptrdiff_t>(at);
  return static_cast<ptrdiff_t>(bytes + difference(begin + bytes, guard(), kGuard));
}

GuardedMemory::GuardedMemory(const LaunchRecord& record) {
  for (const Binding& b : record.bindings) {
    if (!b.tensor || !base(*b.tensor) || b.tensor->storage().nbytes() > kMost) continue;
    const auto same = [&](const Copy& copy) { return copy.original == base(*b.tensor); };
    auto found = std::find_if(copies_.begin(), copies_.end(), same);
    if (found == copies_.end()) found = copies_.emplace(found, *b.tensor);
    if (b.access != Access::read) found->written.push_back(span(*b.tensor));
  }
  for (Copy& copy : copies_) {
    std::sort(copy.written.begin(), copy.written.end());
    std::vector<std::pair<size_t, size_t>> merged;
    for (const auto& [start, stop] : copy.written) {
      if (merged.empty() || start > merged.back().second) merged.emplace_back(start, stop);
      merged.back().second = std::max(merged.back().second, stop);
    }
    copy.written = std::move(merged);
  }
}

void* GuardedMemory::address(const at::TensorBase& tensor) const {
  for (const Copy& copy : copies_)
    if (copy.original == base(tensor)) return copy.begin + tensor.storage_offset() * tensor.itemsize();
  return tensor.data_ptr();
}

void GuardedMemory::finish(const std::string& kernel) {
  for (const Copy& copy : copies_) {
    const ptrdiff_t at = copy.changed();
    std::string given;
    for (const auto& [start, stop] : copy.written) given += c10::str(" [", start, ", ", stop, ")");
    TORCH_CHECK(at == copy.end(), "kernel ", kernel, ": wrote to byte ", at, " of memory of ", copy.bytes,
                " bytes, of which it may write", given.empty() ? " none" : given);
    for (const auto& [start, stop] : copy.written) std::memcpy(copy.original + start, copy.begin + start, stop - start);
  }
}

} // namespace foundry::host
