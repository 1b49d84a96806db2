#include "cuda/module.h"

#include <cstring>
#include <type_traits>

namespace foundry::cuda {
namespace {

constexpr uint64_t kFetchAlign = 16; // of addresses and sizes that the L2 cache is asked for

template <typename T> constexpr T round_up(T n, std::type_identity_t<T> to) { return (n + to - 1) / to * to; }

// As the entry reads it (Launch in cuda/prelude/platform.h).
struct LaunchHead {
  uint32_t grid[3], group[3], groups[3], weights;
  struct {
    uint64_t address, bytes, share;
    uint32_t fetched;
  } weight[MSL_MAX_WEIGHTS];
};

const void* address_of(const Binding& binding) {
  if (!binding.tensor) return binding.bytes;
  return binding.access == Access::read ? binding.tensor->const_data_ptr() : binding.tensor->mutable_data_ptr();
}

uint64_t bytes_of(const Binding& binding) {
  if (!binding.tensor) return binding.size;
  return binding.tensor->storage().nbytes() - binding.tensor->storage_offset() * binding.tensor->itemsize();
}

void check_buffer(const std::string& kernel, const msl_arg_info& argument, const LaunchRecord& record) {
  const bool bound = argument.index < record.bindings.size();
  const void* address = bound ? address_of(record.bindings[argument.index]) : nullptr;
  // A tensor without elements has no address on CUDA, where Metal binds an empty buffer.
  if (!address && bound && record.bindings[argument.index].tensor && !argument.by_reference) return;
  TORCH_CHECK(address || argument.optional, "kernel ", kernel, ": buffer ", argument.index, " is not bound");
  if (!address) return;
  const Binding& binding = record.bindings[argument.index];
  TORCH_CHECK(!binding.tensor || reinterpret_cast<uintptr_t>(address) % argument.alignment == 0, "kernel ", kernel,
              ": buffer ", argument.index, ": address ", address, " is not aligned to the ", argument.alignment,
              " bytes of its type");
  TORCH_CHECK(!argument.by_reference || bytes_of(binding) >= argument.size, "kernel ", kernel, ": buffer ",
              argument.index, " has ", bytes_of(binding), " bytes, its type needs ", argument.size);
}

void check_arguments(const std::string& kernel, const Layout& layout, const LaunchRecord& record) {
  TORCH_CHECK(record.bindings.size() <= MSL_MAX_BUFFERS, "kernel ", kernel, ": buffer index ",
              record.bindings.size() - 1, ", Metal allows 0..", MSL_MAX_BUFFERS - 1);
  TORCH_CHECK(record.threadgroup_memory.size() <= MSL_MAX_BUFFERS, "kernel ", kernel, ": threadgroup memory index ",
              record.threadgroup_memory.size() - 1, ", Metal allows 0..", MSL_MAX_BUFFERS - 1);
  for (const msl_arg_info& argument : layout.arguments) {
    if (argument.kind == MSL_ARG_BUFFER) check_buffer(kernel, argument, record);
    if (argument.kind == MSL_ARG_THREADGROUP && !argument.optional)
      TORCH_CHECK(argument.index < record.threadgroup_memory.size() && record.threadgroup_memory[argument.index] > 0,
                  "kernel ", kernel, ": threadgroup memory ", argument.index, " has no length");
  }
}

// Fills the launch's shape in; throws where Metal or CUDA would refuse it.
LaunchHead shape(const std::string& kernel, const Module& module, const Grid& grid, PreparedLaunch& out) {
  LaunchHead head{};
  uint64_t threads = 1;
  for (int i = 0; i < 3; i++) {
    head.group[i] = grid.group[i];
    threads *= grid.group[i];
    TORCH_CHECK(threads > 0, "kernel ", kernel, ": threadgroup of ", grid.group[0], " x ", grid.group[1], " x ",
                grid.group[2], " threads is empty");
    const uint64_t total = grid.threads ? grid.size[i] : static_cast<uint64_t>(grid.size[i]) * grid.group[i];
    TORCH_CHECK(total <= UINT32_MAX, "kernel ", kernel, ": grid of ", grid.size[i], " threadgroups of ", grid.group[i],
                " threads in dimension ", i, ": positions do not fit 32 bits");
    head.grid[i] = static_cast<uint32_t>(total);
    head.groups[i] = grid.threads ? ceil_div(total, grid.group[i]) : grid.size[i];
    out.groups[i] = head.groups[i];
  }
  TORCH_CHECK(threads <= MSL_MAX_THREADS, "kernel ", kernel, ": threadgroup of ", grid.group[0], " x ", grid.group[1],
              " x ", grid.group[2], " = ", threads, " threads, Metal allows ", MSL_MAX_THREADS);
  TORCH_CHECK(head.groups[0] <= INT32_MAX && head.groups[1] <= UINT16_MAX && head.groups[2] <= UINT16_MAX, "kernel ",
              kernel, ": grid of ", head.groups[0], " x ", head.groups[1], " x ", head.groups[2],
              " threadgroups, CUDA allows 2^31-1 x 65535 x 65535");
  out.threads = round_up(static_cast<uint32_t>(threads), 32);
  return head;
}

// What a threadgroup fetches of its weights while it waits: more delays the kernel before, whose reads come first.
constexpr uint32_t kFetchedBytes = 2048;

// The threadgroups' shares follow one another, as outputs do. Where they don't, the cache has what another one needs.
void share_weights(const LaunchRecord& record, LaunchHead& head) {
  const uint64_t groups = static_cast<uint64_t>(head.groups[0]) * head.groups[1] * head.groups[2];
  for (const Binding& binding : record.bindings) {
    const uint64_t bytes = binding.weight ? binding.tensor->nbytes() : 0;
    if (bytes < 2 * kFetchAlign || head.weights == MSL_MAX_WEIGHTS) continue;
    auto& weight = head.weight[head.weights++];
    const auto address = reinterpret_cast<uint64_t>(address_of(binding));
    weight.address = round_up(address, kFetchAlign);
    weight.bytes = (bytes - (weight.address - address)) / kFetchAlign * kFetchAlign;
    weight.share = round_up(ceil_div(weight.bytes, groups), kFetchAlign);
    weight.fetched = std::min<uint64_t>(weight.share, kFetchedBytes);
  }
}

} // namespace

Layout layout_of(std::vector<msl_arg_info> arguments, const Variant& variant) {
  Layout layout;
  for (const msl_arg_info& argument : arguments) {
    if (argument.kind == MSL_ARG_THREADGROUP) layout.memories = std::max(layout.memories, argument.index + 1);
    if (argument.kind != MSL_ARG_BUFFER) continue;
    layout.buffers = std::max(layout.buffers, argument.index + 1);
    (argument.by_reference ? layout.by_reference : layout.pointers) |= 1u << argument.index;
    if (argument.by_reference && !(variant.references_in_memory >> argument.index & 1))
      layout.value_bytes[argument.index] = round_up(argument.size, 16);
  }
  for (const auto& [index, size] : variant.inline_bytes) layout.value_bytes[index] = round_up(size, 16);
  layout.memory_at = sizeof(LaunchHead);
  layout.buffers_at = round_up(layout.memory_at + (layout.memories + 1) * 4, 8);
  uint32_t at = round_up(layout.buffers_at + (layout.buffers + 1) * 8, 16);
  for (uint32_t i = 0; i < MSL_MAX_BUFFERS; i++) {
    layout.value_at[i] = at;
    at += layout.value_bytes[i];
  }
  layout.bytes = at + 16;
  layout.arguments = std::move(arguments);
  return layout;
}

Module load_module(const std::string& label, const std::string& cubin, CUcontext context, const Variant& variant) {
  const Driver& api = driver();
  Module module;
  module.context = context;
  CUmodule library = nullptr;
  check(api.cuModuleLoadData_(&library, cubin.data()), label.c_str());
  check(api.cuModuleGetFunction_(&module.function, library, "msl_entry"), label.c_str());
  check(api.cuFuncLoad_(module.function), label.c_str()); // now, not at the first launch, which may be captured
  const auto attribute = [&](CUfunction_attribute which) {
    int value = 0;
    check(api.cuFuncGetAttribute_(&value, which, module.function), label.c_str());
    return static_cast<uint32_t>(value);
  };
  module.static_memory = attribute(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
  module.max_threads = attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
  CUdevice device = 0;
  int memory = 0;
  check(api.cuCtxGetDevice_(&device), label.c_str());
  check(api.cuDeviceGetAttribute_(&memory, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device),
        label.c_str());
  module.max_memory = static_cast<uint32_t>(memory);
  check(api.cuFuncSetAttribute_(module.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                memory - static_cast<int>(module.static_memory)),
        label.c_str());
  module.starts_early = attribute(CU_FUNC_ATTRIBUTE_BINARY_VERSION) >= 90 && api.cuGraphAddDependencies_v2_;

  CUdeviceptr description = 0;
  size_t bytes = 0;
  check(api.cuModuleGetGlobal_(&description, &bytes, library, "msl_description"), label.c_str());
  std::vector<uint32_t> words(bytes / 4);
  check(api.cuMemcpyDtoH_(words.data(), description, bytes), label.c_str());
  std::vector<msl_arg_info> arguments(words.at(1));
  TORCH_INTERNAL_ASSERT(bytes >= 8 + arguments.size() * sizeof(msl_arg_info));
  if (!arguments.empty()) std::memcpy(arguments.data(), words.data() + 2, arguments.size() * sizeof(msl_arg_info));
  module.layout = layout_of(std::move(arguments), variant);
  TORCH_INTERNAL_ASSERT(module.layout.bytes == words[0], label, ": the arguments take ", words[0], " bytes, not ",
                        module.layout.bytes);
  TORCH_CHECK(module.layout.bytes <= kMaxParameterBytes, label, ": ", module.layout.bytes,
              " bytes of arguments by value, at most ", kMaxParameterBytes);
  return module;
}

Variant variant_for(const Layout& layout, const LaunchRecord& record) {
  Variant variant;
  for (uint32_t i = 0; i < record.bindings.size() && i < layout.buffers; i++) {
    const Binding& binding = record.bindings[i];
    if (binding.tensor && layout.by_reference >> i & 1) variant.references_in_memory |= 1u << i;
    if (binding.bytes && layout.pointers >> i & 1) variant.inline_bytes.emplace_back(i, round_up(binding.size, 16));
  }
  return variant;
}

PreparedLaunch prepare_launch(const std::string& kernel, const Module& module, const LaunchRecord& record,
                              char* parameter) {
  const Layout& layout = module.layout;
  PreparedLaunch out;
  out.module = &module;
  out.parameter = parameter;
  check_arguments(kernel, layout, record);
  LaunchHead head = shape(kernel, module, record.grid, out);
  share_weights(record, head);
  std::memcpy(parameter, &head, sizeof head);

  uint32_t memory[MSL_MAX_BUFFERS] = {}, used = 0;
  for (size_t i = 0; i < record.threadgroup_memory.size(); i++) {
    TORCH_CHECK(record.threadgroup_memory[i] % 16 == 0, "kernel ", kernel, ": threadgroup memory ", i, " has ",
                record.threadgroup_memory[i], " bytes: not a multiple of 16");
    memory[i] = used;
    used += record.threadgroup_memory[i];
    TORCH_CHECK(used + module.static_memory <= module.max_memory, "kernel ", kernel, ": ", used + module.static_memory,
                " bytes of threadgroup memory, this GPU has ", module.max_memory);
  }
  TORCH_CHECK(module.static_memory <= MSL_MAX_THREADGROUP_BYTES, "kernel ", kernel, ": ", module.static_memory,
              " bytes of threadgroup memory, Metal allows ", MSL_MAX_THREADGROUP_BYTES);
  out.dynamic_memory = used;
  std::memcpy(parameter + layout.memory_at, memory, layout.memories * sizeof(uint32_t));

  for (uint32_t i = 0; i < layout.buffers; i++) {
    uint64_t address = 0;
    if (i < record.bindings.size()) {
      const Binding& binding = record.bindings[i];
      if (layout.value_bytes[i] && binding.bytes)
        std::memcpy(parameter + layout.value_at[i], binding.bytes, std::min(binding.size, layout.value_bytes[i]));
      else
        address = reinterpret_cast<uint64_t>(address_of(binding));
    }
    std::memcpy(parameter + layout.buffers_at + i * sizeof address, &address, sizeof address);
  }
  return out;
}

} // namespace foundry::cuda
