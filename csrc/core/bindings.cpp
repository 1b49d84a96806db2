// Ops that Python uses to steer the library: sources, pipelines by name, counters. Not for models.
#include <deque>
#include <mutex>

#include <torch/library.h>

#include "core/counters.h"
#include "core/executor.h"
#include "core/launch.h"

namespace foundry {
namespace {

std::mutex mutex;
std::deque<Pipeline*>& handles() {
  static auto* list = new std::deque<Pipeline*>;
  return *list;
}

int64_t shader_pipeline(const std::string& device, const std::string& file, const std::string& function,
                        const std::string& signature, const std::string& host_name, const std::vector<int64_t>& indices,
                        const std::vector<std::string>& types, const std::vector<std::string>& values) {
  TORCH_CHECK(indices.size() == values.size() && indices.size() == types.size(), "one value per function constant");
  Kernel kernel{file, function, {}, {}, signature, host_name};
  for (size_t i = 0; i < indices.size(); i++)
    kernel.constants.emplace_back(static_cast<int>(indices[i]), types[i], values[i]);
  Pipeline& found = pipeline(c10::Device(device), kernel);
  std::lock_guard<std::mutex> lock(mutex);
  handles().push_back(&found);
  return static_cast<int64_t>(handles().size()) - 1;
}

// `buffers` in index order; `inline_bytes[i]` says that buffer i is a CPU tensor whose bytes are passed by value.
void shader_launch(int64_t handle, const c10::List<std::optional<at::Tensor>>& buffers,
                   const c10::List<bool>& inline_bytes, const std::vector<int64_t>& grid,
                   const std::vector<int64_t>& group, bool grid_is_threads, const std::vector<int64_t>& memory) {
  Pipeline* pipeline = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex);
    pipeline = handles().at(handle);
  }
  std::vector<at::Tensor> tensors; // the launch points into it
  tensors.reserve(buffers.size());
  Launch launch(*pipeline);
  for (size_t i = 0; i < buffers.size(); i++) {
    const std::optional<at::Tensor> buffer = buffers.get(i);
    if (!buffer) {
      launch.none();
    } else if (inline_bytes.get(i)) {
      launch.bytes(buffer->const_data_ptr(), buffer->nbytes());
    } else {
      launch.inout(tensors.emplace_back(*buffer));
    }
  }
  Grid shape;
  shape.threads = grid_is_threads;
  for (int i = 0; i < 3; i++) {
    shape.size[i] = static_cast<uint32_t>(grid.at(i));
    shape.group[i] = static_cast<uint32_t>(group.at(i));
  }
  for (int64_t bytes : memory) launch.tgmem(bytes);
  launch.run(shape);
}

std::vector<int64_t> as_list(const Counts& c) { return {c.launches, c.bytes, c.host_ns}; }

c10::Dict<std::string, std::vector<int64_t>> counts_by_scope() {
  c10::Dict<std::string, std::vector<int64_t>> dict;
  for (const auto& [name, counts] : scope_counts()) dict.insert(name, as_list(counts));
  return dict;
}

} // namespace

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def("_add_source(str file, str text, str translated) -> ()", &add_source);
  m.def("_executor(str device) -> str",
        [](const std::string& device) -> std::string { return executor(c10::Device(device)).name(); });
  m.def("_family(str device) -> str",
        [](const std::string& device) -> std::string { return executor(c10::Device(device)).family(); });
  m.def("_shader_pipeline(str device, str file, str function, str signature, str host_name, int[] indices, "
        "str[] types, str[] values) -> int",
        &shader_pipeline);
  m.def("_shader_launch(int handle, Tensor?[] buffers, bool[] inline_bytes, int[] grid, int[] group, "
        "bool grid_is_threads, int[] memory) -> ()",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &shader_launch)); // dispatch modes see it whole
  m.def("_counts() -> int[]", [] { return as_list(total_counts()); });
  m.def("_scope_counts() -> Dict(str, int[])", &counts_by_scope);
  m.def("_reset_counts() -> ()", &reset_counts);
  m.def("_push_scope(str name) -> ()", &push_scope);
  m.def("_pop_scope() -> ()", &pop_scope);
}

} // namespace foundry
