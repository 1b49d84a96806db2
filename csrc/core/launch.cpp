#include "core/launch.h"

#include <ATen/record_function.h>

#include "core/counters.h"
#include "core/graph.h"
#include "core/kernel_list.h"

namespace foundry {

Launch& Launch::bytes(const void* data, size_t size) {
  char* place = inline_ + used_;
  if (used_ + size <= kInline)
    used_ = (used_ + size + 15) / 16 * 16; // each struct starts as aligned as MSL may ask
  else
    place = long_bytes_.emplace_back(new char[size]).get();
  bindings_.push_back({nullptr, std::memcpy(place, data, size), static_cast<uint32_t>(size), Access::read});
  return *this;
}

void Launch::run(const Grid& grid) {
  if (grid.size[0] == 0 || grid.size[1] == 0 || grid.size[2] == 0) return;
  if (KernelList* list = KernelList::recording(); list && list->take(pipeline_, grid)) return;
  if (min_bytes_ < 0) {
    min_bytes_ = 0;
    for (const Binding& b : bindings_) min_bytes_ += b.tensor ? b.tensor->nbytes() : 0;
  }
  RECORD_FUNCTION("kernel " + pipeline_.kernel.entry(), c10::ArrayRef<const c10::IValue>{}); // for torch.profiler
  CountedLaunch counted(min_bytes_);
  const LaunchRecord record{bindings_, threadgroup_memory_, grid};
  pipeline_.executor.launch(pipeline_, record);
  if (LaunchGraph* graph = LaunchGraph::capturing()) graph->append(pipeline_, record, min_bytes_);
}

} // namespace foundry
