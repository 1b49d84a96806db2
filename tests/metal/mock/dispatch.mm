// Serial queues of libdispatch, with an owner, so that waiting for oneself is reported instead of hanging.
#include <dispatch/dispatch.h>

#include <mutex>
#include <thread>

#include "queues.h"
#include "rules.h"

struct dispatch_queue_s {
  std::mutex mutex;
  std::atomic<std::thread::id> owner{};
};

struct dispatch_data_s {
  std::string bytes;
};

namespace mock {
namespace {
thread_local int depth = 0;
}
std::string data_of(dispatch_data_t data) { return data->bytes; }
bool on_queue(dispatch_queue_t queue) { return queue->owner == std::this_thread::get_id(); }
bool on_any_queue() { return depth > 0; }
} // namespace mock

extern "C" {

dispatch_queue_t dispatch_queue_create(const char*, dispatch_queue_attr_t) { return new dispatch_queue_s; }

void dispatch_sync(dispatch_queue_t queue, dispatch_block_t block) {
  MOCK_RULE("queue-reentrance", !mock::on_queue(queue),
            "dispatch_sync on the queue that the calling thread is running on never returns");
  std::lock_guard<std::mutex> lock(queue->mutex);
  struct Turn {
    explicit Turn(dispatch_queue_t queue) : queue(queue) {
      queue->owner = std::this_thread::get_id();
      mock::depth++;
    }
    ~Turn() {
      mock::depth--;
      queue->owner = std::thread::id();
    }
    dispatch_queue_t queue;
  } turn(queue);
  try {
    block();
  } catch (...) {
    mock::note("exception-in-dispatch", "a C++ exception left the block of dispatch_sync: the process would terminate");
    throw;
  }
}

dispatch_queue_t dispatch_get_main_queue(void) {
  static auto* queue = new dispatch_queue_s;
  return queue;
}

dispatch_data_t dispatch_data_create(const void* bytes, size_t size, dispatch_queue_t, dispatch_block_t) {
  mock::count_object("dispatch_data", 1);
  return new dispatch_data_s{std::string(static_cast<const char*>(bytes), size)};
}

void dispatch_release(void* data) { // of data only: nobody but torch makes queues
  mock::count_object("dispatch_data", -1);
  delete static_cast<dispatch_data_s*>(data);
}

} // extern "C"
