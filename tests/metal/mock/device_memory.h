// Memory of MPS tensors: an allocator as strict as torch's, and the stream's order for what the mock does itself.
#pragma once

#include <cstdint>
#include <functional>

#include <c10/core/Allocator.h>

namespace mock {

c10::Allocator* allocator();
int64_t allocated(); // bytes in live storages
// The host's address of a storage: its data pointer is the buffer object.
void* host_address(const void* storage_data);

void synchronize();                       // waits for all that was encoded
void enqueue(std::function<void()> work); // after what was encoded, before what comes

} // namespace mock
