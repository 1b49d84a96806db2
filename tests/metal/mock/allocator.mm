// A storage's data pointer is the id<MTLBuffer> itself, as on a Mac. A freed buffer is poisoned once the GPU is done
// with what was encoded before, or given to the next tensor of its size before that (the setting `recycle`).
#include <ATen/mps/MPSAllocatorInterface.h>

#include "device_memory.h"
#include "objects.h"
#include "queues.h"

namespace mock {
namespace {

std::atomic<int64_t> live{0};

std::string gigabytes(int64_t bytes) {
  char text[32];
  snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1 << 30));
  return text;
}

std::vector<MockBuffer*>& free_list() {
  static auto* made = new std::vector<MockBuffer*>;
  return *made;
}

void free_buffer(void* context) {
  auto* buffer = static_cast<MockBuffer*>(context);
  if (!buffer) return;
  live -= static_cast<int64_t>(buffer->length);
  if (settings().recycle)
    free_list().push_back(buffer);
  else
    [buffer release]; // command buffers hold what they need
}

// A buffer for `size` bytes: with `recycle` the last one of this size that was freed, as it is, which the GPU may have
// yet to use.
MockBuffer* take_buffer(size_t size) {
  auto& list = free_list();
  if (!settings().recycle)
    for (; !list.empty(); list.pop_back()) [list.back() release];
  for (auto at = list.rbegin(); at != list.rend(); ++at) {
    MockBuffer* buffer = *at;
    if (buffer->length != size) continue;
    list.erase(std::next(at).base());
    return buffer;
  }
  return make_buffer(size);
}

class Allocator final : public at::mps::IMPSAllocator {
public:
  c10::DataPtr allocate(size_t size) override {
    MOCK_RULE("allocation-on-queue", !on_any_queue(),
              "a tensor was allocated inside a block of the stream's queue: under memory pressure that never returns");
    const auto wanted = static_cast<int64_t>(size);
    const int64_t limit = settings().memory;
    // the two sentences of torch's allocator
    TORCH_CHECK(wanted <= settings().max_buffer, "Invalid buffer size: ", gigabytes(wanted));
    TORCH_CHECK(live + wanted <= limit, "MPS backend out of memory (MPS allocated: ", gigabytes(live),
                ", other allocations: 0 bytes, max allowed: ", gigabytes(limit), "). Tried to allocate ",
                gigabytes(wanted), " on shared pool.");
    if (size == 0) return {nullptr, nullptr, &free_buffer, c10::Device(c10::kMPS, 0)}; // as torch has it
    MockBuffer* buffer = take_buffer(size);
    live += static_cast<int64_t>(buffer->length);
    void* data = settings().plain_pointers ? static_cast<void*>(buffer->bytes) : buffer;
    return {data, buffer, &free_buffer, c10::Device(c10::kMPS, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_buffer; }
  void copy_data(void* to, const void* from, size_t size) const override {
    synchronize();
    memcpy(host_address(to), host_address(from), size);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  void freeInactiveBuffers() const override {}
  ssize_t getUnalignedBufferSize(const void*) const override { return -1; }
  c10::IntArrayRef getBufferShape(const void*) const override { return {}; }
  id_t getBufferId(const void*) const override { return 0; }
  void setBufferShape(const void*, const c10::IntArrayRef&) const override {}
  bool isSharedBuffer(const void*) const override { return true; }
  c10::DataPtr allocScalarBufferWithValue(void*, size_t) const override { return {}; }
  std::string formatSize(size_t size) const override { return gigabytes(static_cast<int64_t>(size)); }
  void setLowWatermarkRatio(double) const override {}
  void setHighWatermarkRatio(double) const override {}
  ssize_t getLowWatermarkValue() const override { return 0; }
  size_t getLowWatermarkLimit() const override { return 0; }
  size_t getHighWatermarkLimit() const override { return static_cast<size_t>(settings().memory.load()); }
  size_t getTotalAllocatedMemory() const override { return static_cast<size_t>(live.load()); }
  size_t getCurrentAllocatedMemory() const override { return static_cast<size_t>(live.load()); }
  size_t getDriverAllocatedMemory() const override { return static_cast<size_t>(live.load()); }
  size_t getRecommendedMaxMemory() const override { return static_cast<size_t>(settings().memory.load()); }
  std::pair<const void*, uint32_t> getSharedBufferPtr(const void* data) const override {
    return {host_address(data), 1};
  }
  c10::Storage getHostAliasStorage(const c10::Storage&) const override { return {}; }
  bool recordEvents(c10::ArrayRef<const void*>) const override { return false; }
  bool waitForEvents(c10::ArrayRef<const void*>) const override { return false; }
};

Allocator& instance() {
  static auto* made = new Allocator;
  return *made;
}

} // namespace

c10::Allocator* allocator() { return &instance(); }
int64_t allocated() { return live; }
void* host_address(const void* data) {
  if (settings().plain_pointers) return const_cast<void*>(data);
  return checked<MockBuffer>(static_cast<id>(const_cast<void*>(data)), "a storage")->bytes;
}

} // namespace mock

namespace at::mps {
IMPSAllocator* getIMPSAllocator() { return &mock::instance(); }
} // namespace at::mps
