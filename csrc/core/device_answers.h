// What devices say of themselves: asked when it is first needed, and again where shaders were replaced since.
#pragma once

#include <atomic>

#include <c10/core/Device.h>

#include "core/kernel.h"

namespace foundry {

class DeviceAnswers {
public:
  // What `ask()`, a number of 32 bits, said for devices of this type. Threads that need it at once all ask.
  template <class Ask> uint32_t get(c10::Device device, Ask ask) {
    std::atomic<uint64_t>& known = answers_[static_cast<size_t>(device.type())];
    const uint64_t generation = uint64_t(source_generation().load(std::memory_order_acquire)) + 1;
    uint64_t answer = known.load(std::memory_order_acquire);
    if (answer >> 32 != generation) {
      answer = generation << 32 | ask();
      known.store(answer, std::memory_order_release);
    }
    return static_cast<uint32_t>(answer);
  }

private:
  std::atomic<uint64_t> answers_[c10::COMPILE_TIME_MAX_DEVICE_TYPES]{}; // the generation and 1, then what was said
};

} // namespace foundry
