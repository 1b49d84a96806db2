// How a graph may be replayed by something faster than encoding its launches again.
#pragma once

#include <memory>
#include <string>

#include "core/executor.h"

namespace foundry::metal {

constexpr const char* kGraphName = "torch_foundry graph"; // in torch.mps.profiler

// Makes a replayer of indirect commands; null, with the reason in `why_not`, where the driver refuses.
using IndirectReplay = std::unique_ptr<Replayer> (*)(c10::ArrayRef<CapturedLaunch> launches, std::string& why_not);

// For a static initialiser: builds without one encode again.
void register_indirect(IndirectReplay make);

} // namespace foundry::metal
