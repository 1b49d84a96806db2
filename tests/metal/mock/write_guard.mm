#include "write_guard.h"

#include <csignal>
#include <mutex>
#include <sys/mman.h>

namespace mock {
namespace {

constexpr size_t kPage = 4096;

struct Guarded {
  MockBuffer* buffer;
  uint8_t *begin, *end;
};

std::mutex turn; // held while a guard exists
std::vector<Guarded>& guarded() {
  static auto* made = new std::vector<Guarded>;
  return *made;
}
std::atomic<void*> first_written{nullptr}; // a MockBuffer
struct sigaction before;

// A write to a guarded page: remembered, and allowed from here on.
void on_fault(int signal, siginfo_t* info, void*) {
  auto* address = static_cast<uint8_t*>(info->si_addr);
  for (const Guarded& g : guarded()) {
    if (address < g.begin || address >= g.end) continue;
    void* none = nullptr;
    first_written.compare_exchange_strong(none, g.buffer);
    mprotect(g.begin, g.end - g.begin, PROT_READ | PROT_WRITE);
    return;
  }
  sigaction(signal, &before, nullptr); // not ours: happens again, for who was there before
}

} // namespace

WriteGuard::WriteGuard(const std::vector<MockBuffer*>& buffers) {
  turn.lock();
  first_written = nullptr;
  for (MockBuffer* buffer : buffers) {
    if (buffer->foreign) continue; // its pages have their own protection
    const size_t size = (buffer->length + kPage - 1) / kPage * kPage;
    guarded().push_back({buffer, buffer->bytes, buffer->bytes + size});
  }
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &before);
  for (const Guarded& g : guarded()) mprotect(g.begin, g.end - g.begin, PROT_READ);
}

WriteGuard::~WriteGuard() {
  for (const Guarded& g : guarded()) mprotect(g.begin, g.end - g.begin, PROT_READ | PROT_WRITE);
  sigaction(SIGSEGV, &before, nullptr);
  guarded().clear();
  turn.unlock();
}

MockBuffer* WriteGuard::written() const { return static_cast<MockBuffer*>(first_written.load()); }

} // namespace mock
