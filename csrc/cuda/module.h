// A loaded kernel of one device, and how its arguments are laid out.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "core/executor.h"
#include "cuda/compiler.h"
#include "cuda/driver.h"
#include "prelude/argument_info.h"

namespace foundry::cuda {

// The entry's parameter, by the same rules as Parameters in cuda/prelude/arguments.h: the launch, the offsets of
// threadgroup memory, the buffers' addresses, the values.
struct Layout {
  std::vector<msl_arg_info> arguments;
  uint32_t memories = 0, buffers = 0; // one more than the greatest index
  uint32_t memory_at = 0, buffers_at = 0, bytes = 0;
  uint32_t by_reference = 0; // bit i: buffer i is a `constant T&`
  uint32_t pointers = 0;     // bit i: buffer i is a pointer
  // By buffer index: where its value lies in the parameter and how long it may be; 0: it is passed by address.
  uint32_t value_at[MSL_MAX_BUFFERS] = {}, value_bytes[MSL_MAX_BUFFERS] = {};
};

Layout layout_of(std::vector<msl_arg_info> arguments, const Variant& variant);

struct Module {
  CUcontext context = nullptr;
  CUfunction function = nullptr;
  uint32_t static_memory = 0; // bytes of threadgroup variables
  uint32_t max_threads = 0;   // that the registers suffice for
  uint32_t max_memory = 0;    // bytes of threadgroup memory that a launch may have; Metal's GPUs have less
  bool starts_early = false;  // it waits for the kernel before it by itself (MSL_WAIT_FOR_KERNEL_BEFORE)
  Layout layout;
};

// Loads a cubin of module_text's form into `context`, which must be current.
Module load_module(const std::string& label, const std::string& cubin, CUcontext context, const Variant& variant);

// A launch, ready for the driver.
struct PreparedLaunch {
  const Module* module = nullptr;
  uint32_t groups[3] = {}, threads = 0, dynamic_memory = 0;
  std::vector<char> owned; // the parameter, where it must outlive the call
  void* parameter = nullptr;
};

constexpr size_t kMaxParameterBytes = 4096;

// The variant of the kernel that these bindings need.
Variant variant_for(const Layout& layout, const LaunchRecord& record);

// Checks a launch against Metal's limits and the kernel's arguments, and writes its parameter to `parameter`.
PreparedLaunch prepare_launch(const std::string& kernel, const Module& module, const LaunchRecord& record,
                              char* parameter);

} // namespace foundry::cuda
