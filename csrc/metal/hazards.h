// Which launches of a graph have to wait for others, where the encoder doesn't order them.
#pragma once

#include <set>

#import <Metal/Metal.h>

#include "core/graph.h"

namespace foundry::metal {

// What launches touched since the last barrier, by whole buffers.
class Hazards {
public:
  // Whether `launch` has to wait for those before it: it reads what they wrote, or writes what they read or wrote.
  bool wait(const CapturedLaunch& launch);
  void clear();

private:
  std::set<id<MTLBuffer>> read_, written_;
};

} // namespace foundry::metal
