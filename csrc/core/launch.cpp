#include "core/launch.h"

#include "core/counters.h"
#include "core/tape.h"

namespace foundry {

Launch& Launch::bytes(const void* data, size_t size) {
  TORCH_CHECK(used_ + size <= kInline, pipeline_.kernel.entry(), ": ", used_ + size,
              " bytes of inline arguments, at most ", kInline);
  std::memcpy(inline_ + used_, data, size);
  bindings_.push_back({nullptr, inline_ + used_, static_cast<uint32_t>(size), Access::read});
  used_ = (used_ + size + 15) / 16 * 16; // each struct starts as aligned as MSL may ask
  return *this;
}

void Launch::run(const Grid& grid) {
  if (grid.size[0] == 0 || grid.size[1] == 0 || grid.size[2] == 0) return;
  if (moved_ < 0) {
    moved_ = 0;
    for (const Binding& b : bindings_) moved_ += b.tensor ? b.tensor->nbytes() : 0;
  }
  CountedLaunch counted(moved_);
  const LaunchRecord record{bindings_, threadgroup_memory_, grid};
  pipeline_.executor.launch(pipeline_, record);
  if (Tape* tape = Tape::recording()) tape->append(pipeline_, record, moved_);
}

} // namespace foundry
