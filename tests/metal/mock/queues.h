// Who runs on which serial queue.
#pragma once

#include <dispatch/dispatch.h>

namespace mock {

bool on_queue(dispatch_queue_t queue); // whether the calling thread is inside a block of `queue`
bool on_any_queue();

} // namespace mock
