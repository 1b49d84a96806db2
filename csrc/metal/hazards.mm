#include "metal/hazards.h"

#include "metal/stream.h"

namespace foundry::metal {
namespace {

using Buffers = std::set<id<MTLBuffer>>;

bool meets(const Buffers& some, const Buffers& others) {
  for (id<MTLBuffer> buffer : some)
    if (others.count(buffer)) return true;
  return false;
}

} // namespace

bool Hazards::wait(const CapturedLaunch& launch) {
  Buffers read, written;
  for (const Binding& b : launch.bindings) {
    if (!b.tensor) continue;
    id<MTLBuffer> buffer = place(*b.tensor).buffer;
    if (!buffer) continue; // an empty tensor
    if (b.access != Access::write) read.insert(buffer);
    if (b.access != Access::read) written.insert(buffer);
  }
  const bool conflict = meets(read, written_) || meets(written, read_) || meets(written, written_);
  if (conflict) clear();
  read_.insert(read.begin(), read.end());
  written_.insert(written.begin(), written.end());
  return conflict;
}

void Hazards::clear() {
  read_.clear();
  written_.clear();
}

} // namespace foundry::metal
