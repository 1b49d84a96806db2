#include "host/guarded.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

namespace foundry::host {
namespace {

constexpr size_t kGuard = 512;     // bytes on either side, and those that alignment leaves
constexpr size_t kAlign = 64;      // of torch's memory
constexpr size_t kMost = 64 << 20; // larger storages stay where they are: copies would take longer than kernels
constexpr size_t kFar = 16;        // pages beyond, which are noticed when a kernel touches them
// A NaN in every floating type, though none that arithmetic gives: what is read past the end shows too.
constexpr uint16_t kPattern = 0x7fff;

size_t page() {
  static const auto size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return size;
}

// The mappings there are, as a signal handler may look at them: from `begin` to `end`, 0 if there is none. touched: an
// address outside what may be touched; 0: none.
struct Mapping {
  std::atomic<uintptr_t> begin{0}, end{0}, touched{0};
};
std::array<Mapping, 1024> mappings;
struct sigaction before[2];

// Notes the address and lets the kernel go on, whose launch fails when it has ended.
void on_fault(int signal, siginfo_t* info, void* context) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (Mapping& own : mappings)
    if (at >= own.begin && at < own.end) {
      uintptr_t none = 0;
      own.touched.compare_exchange_strong(none, at);
      if (mprotect(reinterpret_cast<void*>(at / page() * page()), page(), PROT_READ | PROT_WRITE) == 0) return;
    }
  const struct sigaction& other = before[signal == SIGBUS];
  if (other.sa_flags & SA_SIGINFO)
    other.sa_sigaction(signal, info, context);
  else if (other.sa_handler != SIG_DFL && other.sa_handler != SIG_IGN)
    other.sa_handler(signal);
  else
    std::signal(signal, SIG_DFL); // and the instruction faults again
}

void notice_faults() {
  static const bool done = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &before[0]);
    sigaction(SIGBUS, &action, &before[1]); // what macOS sends
    return true;
  }();
  (void)done;
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

GuardedMemory::Copy::Copy(const at::TensorBase& tensor) : original(base(tensor)), bytes(tensor.storage().nbytes()) {
  notice_faults();
  const size_t inside = (bytes + 2 * kGuard + kAlign + page() - 1) / page() * page(), far = kFar * page();
  void* mapped = mmap(nullptr, inside + 2 * far, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0);
  TORCH_CHECK(mapped != MAP_FAILED, "guarded memory: no ", inside, " bytes");
  first = static_cast<char*>(mapped) + far, last = first + inside;
  TORCH_CHECK(mprotect(first, inside, PROT_READ | PROT_WRITE) == 0, "guarded memory: mprotect failed");
  const auto address = [](const char* p) { return reinterpret_cast<uintptr_t>(p); };
  begin = last - kGuard - bytes;
  begin -= (address(begin) - address(original)) % kAlign;
  std::fill(reinterpret_cast<uint16_t*>(first), reinterpret_cast<uint16_t*>(last), kPattern);
  std::memcpy(begin, original, bytes);
  for (uintptr_t none = 0; slot < mappings.size(); slot++, none = 0)
    if (mappings[slot].begin.compare_exchange_strong(none, address(first) - far)) break;
  TORCH_CHECK(slot < mappings.size(), "guarded memory: more than ", mappings.size(), " tensors at a time");
  mappings[slot].touched = 0;
  mappings[slot].end = address(last) + far;
}

GuardedMemory::Copy::~Copy() {
  mappings[slot].end = 0;
  mappings[slot].begin = 0;
  munmap(first - kFar * page(), last - first + 2 * kFar * page());
}

ptrdiff_t GuardedMemory::Copy::end() const { return last - begin; }

ptrdiff_t GuardedMemory::Copy::touched() const {
  const uintptr_t at = mappings[slot].touched;
  return at == 0 ? end() : static_cast<ptrdiff_t>(at - reinterpret_cast<uintptr_t>(begin));
}

ptrdiff_t GuardedMemory::Copy::changed() const {
  const auto broken = [&](const char* from, const char* to) {
    for (; from < to; from++)
      if (*from != reinterpret_cast<const char*>(&kPattern)[(from - first) % sizeof kPattern]) break;
    return from - begin;
  };
  if (const ptrdiff_t at = broken(first, begin); at < 0) return at;
  size_t from = 0;
  const auto kept = [&](size_t to) { return from + difference(begin + from, original + from, to - from); };
  for (const auto& [start, stop] : written) {
    if (const size_t at = kept(start); at < start) return static_cast<ptrdiff_t>(at);
    from = stop;
  }
  if (const size_t at = kept(bytes); at < bytes) return static_cast<ptrdiff_t>(at);
  return broken(begin + bytes, last);
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
    TORCH_CHECK(copy.touched() == copy.end(), "kernel ", kernel, ": read or wrote byte ", copy.touched(),
                " of memory of ", copy.bytes, " bytes");
    const ptrdiff_t at = copy.changed();
    std::string given;
    for (const auto& [start, stop] : copy.written) given += c10::str(" [", start, ", ", stop, ")");
    TORCH_CHECK(at == copy.end(), "kernel ", kernel, ": wrote to byte ", at, " of memory of ", copy.bytes,
                " bytes, of which it may write", given.empty() ? " none" : given);
    for (const auto& [start, stop] : copy.written) std::memcpy(copy.original + start, copy.begin + start, stop - start);
  }
}

} // namespace foundry::host
