// Launches of a tape as indirect commands: recorded once, replayed by a few calls.
#pragma once

#include "core/executor.h"
#include "core/tape.h"

namespace foundry::metal {

// Null, with the reason in `why_not`, where the driver refuses: then the launches are to be encoded again each time.
std::unique_ptr<Replayer> indirect_replayer(c10::ArrayRef<RecordedLaunch> launches, std::string& why_not);

} // namespace foundry::metal
