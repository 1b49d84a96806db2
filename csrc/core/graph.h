// Capture and replay: while a graph captures, every launch of its thread is appended to it; replay repeats the list
// with no Python, no checks of shapes and no allocation. What changes from one replay to the next lies in tensors.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/custom_class.h>

#include "core/executor.h"

namespace foundry {

// One launch as it was made, owning all that it refers to.
struct CapturedLaunch {
  CapturedLaunch(Pipeline& pipeline, const LaunchRecord& record, int64_t moved);
  CapturedLaunch(CapturedLaunch&&) = default;
  LaunchRecord record() const { return {bindings, threadgroup_memory, grid}; }

  Pipeline* pipeline;
  std::vector<Binding> bindings;       // point into `tensors` and `bytes`
  std::vector<at::TensorBase> tensors; // by buffer index; undefined where none is bound
  std::vector<char> bytes;
  std::vector<uint32_t> threadgroup_memory;
  Grid grid;
  int64_t moved;     // bytes declared to the counters
  std::string scope; // of the counters, when it was captured
};

class LaunchGraph : public torch::CustomClassHolder {
public:
  // The graph that the calling thread captures on, or null.
  static LaunchGraph* capturing();

  ~LaunchGraph() override;
  void start(); // from here on launches of this thread are appended; throws if a graph captures already
  void stop();
  // Nothing is launched, and the result says why, if a tensor changed its memory, or shaders were replaced, since it
  // was captured; otherwise the result is empty.
  std::string replay();

  // Of each launch: the kernel, the scope in which it was captured, and the bytes that it must move.
  std::vector<std::tuple<std::string, std::string, int64_t>> launches() const;
  // A launch as its executor got it: the kernel as `listed_name` has it; by buffer index a tensor, or the bytes of
  // an argument struct; which of them it writes; the grid's size, threadgroup, whether it counts threads, and the bytes
  // of each threadgroup argument.
  using Detail =
      std::tuple<std::string, std::vector<std::optional<at::Tensor>>, std::vector<int64_t>, std::vector<int64_t>>;
  Detail launch(int64_t index) const;
  // A graph of some of the launches, by index, in the order given. For measurements.
  c10::intrusive_ptr<LaunchGraph> part(const std::vector<int64_t>& indices) const;

  void append(Pipeline& pipeline, const LaunchRecord& record, int64_t moved) {
    append(CapturedLaunch(pipeline, record, moved));
  }
  int64_t size() const { return static_cast<int64_t>(launches_.size()); }
  int64_t bytes() const { return bytes_; }

private:
  void append(CapturedLaunch launch);
  std::string changed() const; // as of `replay`

  struct Memory { // where a captured tensor lay
    const void* data;
    int64_t offset, bytes;
  };
  std::vector<CapturedLaunch> launches_;
  std::vector<std::vector<Memory>> memory_; // by launch and buffer index
  std::unique_ptr<Replayer> replayer_;      // made by the first replay
  std::mutex mutex_;                        // of `replayer_`: graphs are replayed without Python's lock
  int64_t bytes_ = 0;
  uint32_t generation_ = 0;
};

} // namespace foundry
