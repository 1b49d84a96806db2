#include "core/graph.h"

#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include "core/counters.h"
#include "core/kernel_list.h"

namespace foundry {
namespace {

thread_local LaunchGraph* current = nullptr;

class ListReplayer : public Replayer {
public:
  explicit ListReplayer(c10::ArrayRef<CapturedLaunch> launches) : launches_(launches) {}
  void replay() override {
    for (const CapturedLaunch& launch : launches_) {
      RECORD_FUNCTION("kernel " + launch.pipeline->kernel.entry(), c10::ArrayRef<const c10::IValue>{});
      launch.pipeline->executor.launch(*launch.pipeline, launch.record());
    }
  }

private:
  c10::ArrayRef<CapturedLaunch> launches_;
};

const void* data_of(const at::TensorBase& tensor) { return tensor.storage().data(); }

} // namespace

std::unique_ptr<Replayer> Executor::prepare(c10::ArrayRef<CapturedLaunch> launches) {
  return std::make_unique<ListReplayer>(launches);
}

CapturedLaunch::CapturedLaunch(Pipeline& pipeline, const LaunchRecord& record, int64_t moved)
    : pipeline(&pipeline), bindings(record.bindings.begin(), record.bindings.end()), tensors(record.bindings.size()),
      threadgroup_memory(record.threadgroup_memory.begin(), record.threadgroup_memory.end()), grid(record.grid),
      moved(moved), scope(current_scope()) {
  constexpr size_t kAlign = 16; // of an argument struct, as Launch aligns them
  size_t total = 0;
  for (const Binding& b : bindings) total += (b.size + kAlign - 1) / kAlign * kAlign;
  bytes.resize(total);
  size_t used = 0;
  for (size_t i = 0; i < bindings.size(); i++) {
    Binding& b = bindings[i];
    if (b.tensor) {
      tensors[i] = *b.tensor;
      b.tensor = &tensors[i];
    } else if (b.bytes) {
      b.bytes = std::memcpy(bytes.data() + used, b.bytes, b.size);
      used += (b.size + kAlign - 1) / kAlign * kAlign;
    }
  }
}

LaunchGraph* LaunchGraph::capturing() { return current; }

LaunchGraph::~LaunchGraph() {
  if (current == this) current = nullptr;
}

void LaunchGraph::start() {
  TORCH_CHECK(!current, "torch_foundry: a graph is already capturing in this thread");
  TORCH_CHECK(launches_.empty(), "torch_foundry: this graph has captured already; make a new one");
  generation_ = source_generation().load();
  current = this;
}

void LaunchGraph::stop() {
  TORCH_CHECK(current == this, "torch_foundry: this graph isn't capturing in this thread");
  current = nullptr;
}

void LaunchGraph::append(CapturedLaunch captured) {
  TORCH_CHECK(launches_.empty() || &launches_[0].pipeline->executor == &captured.pipeline->executor,
              "torch_foundry: a graph holds launches of one device, got ", captured.pipeline->executor.name(),
              " after ", launches_[0].pipeline->executor.name());
  const CapturedLaunch& launch = launches_.emplace_back(std::move(captured));
  std::vector<Memory>& memory = memory_.emplace_back();
  for (const at::TensorBase& t : launch.tensors)
    memory.push_back(t.defined() ? Memory{data_of(t), t.storage_offset(), static_cast<int64_t>(t.nbytes())} : Memory{});
  bytes_ += launch.moved;
}

std::vector<std::tuple<std::string, std::string, int64_t>> LaunchGraph::launches() const {
  std::vector<std::tuple<std::string, std::string, int64_t>> found;
  for (const CapturedLaunch& launch : launches_)
    found.emplace_back(launch.pipeline->kernel.entry(), launch.scope, launch.moved);
  return found;
}

LaunchGraph::Detail LaunchGraph::launch(int64_t index) const {
  const CapturedLaunch& launch = launches_.at(static_cast<size_t>(index));
  std::vector<std::optional<at::Tensor>> buffers;
  std::vector<int64_t> written;
  for (size_t i = 0; i < launch.bindings.size(); i++) {
    const Binding& b = launch.bindings[i];
    buffers.push_back(b.tensor  ? std::optional<at::Tensor>(launch.tensors[i])
                      : b.bytes ? at::from_blob(const_cast<void*>(b.bytes), {b.size}, at::kByte).clone()
                                : std::optional<at::Tensor>());
    written.push_back(b.access != Access::read);
  }
  const auto& [size, group, threads] = launch.grid;
  std::vector<int64_t> grid(size.begin(), size.end());
  grid.insert(grid.end(), group.begin(), group.end());
  grid.push_back(threads);
  grid.insert(grid.end(), launch.threadgroup_memory.begin(), launch.threadgroup_memory.end());
  return {listed_name(launch.pipeline->kernel), std::move(buffers), std::move(written), std::move(grid)};
}

c10::intrusive_ptr<LaunchGraph> LaunchGraph::part(const std::vector<int64_t>& indices) const {
  const std::string why = changed();
  TORCH_CHECK(why.empty(), why);
  auto part = c10::make_intrusive<LaunchGraph>();
  part->generation_ = generation_;
  for (const int64_t i : indices) {
    TORCH_CHECK(i >= 0 && i < size(), "torch_foundry: launch ", i, " of a graph of ", size());
    CapturedLaunch copy(*launches_[i].pipeline, launches_[i].record(), launches_[i].moved);
    copy.scope = launches_[i].scope;
    part->append(std::move(copy));
  }
  return part;
}

std::string LaunchGraph::changed() const {
  if (generation_ != source_generation().load())
    return "torch_foundry: shaders were replaced since this graph was captured; capture it again";
  for (size_t i = 0; i < launches_.size(); i++) {
    const std::vector<at::TensorBase>& tensors = launches_[i].tensors;
    for (size_t b = 0; b < tensors.size(); b++) {
      if (!tensors[b].defined()) continue;
      const Memory& was = memory_[i][b];
      if (data_of(tensors[b]) != was.data || tensors[b].storage_offset() != was.offset ||
          static_cast<int64_t>(tensors[b].nbytes()) != was.bytes)
        return c10::str("torch_foundry: launch ", i, " of the graph (", launches_[i].pipeline->kernel.entry(),
                        "): buffer ", b, " has other memory than when it was captured; capture the graph again");
    }
  }
  return {};
}

std::string LaunchGraph::replay() {
  std::lock_guard<std::mutex> lock(mutex_);
  if (launches_.empty()) return {};
  TORCH_CHECK(!current, "torch_foundry: a graph can't be replayed while one is capturing in this thread");
  if (std::string why = changed(); !why.empty()) return why;
  if (!replayer_) replayer_ = launches_[0].pipeline->executor.prepare(launches_);
  RECORD_FUNCTION("graph of " + std::to_string(size()) + " kernels", c10::ArrayRef<const c10::IValue>{});
  CountedLaunch counted(bytes_, size());
  replayer_->replay();
  return {};
}

namespace {

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.class_<LaunchGraph>("LaunchGraph")
      .def(torch::init<>())
      .def("start", &LaunchGraph::start)
      .def("stop", &LaunchGraph::stop)
      .def("replay", &LaunchGraph::replay)
      .def("launches", &LaunchGraph::launches)
      .def("launch", &LaunchGraph::launch)
      .def("part", &LaunchGraph::part)
      .def("size", &LaunchGraph::size)
      .def("bytes", &LaunchGraph::bytes);
}

} // namespace
} // namespace foundry
