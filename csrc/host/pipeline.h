// A kernel that the host executor has compiled.
#pragma once

#include <utility>

#include "core/executor.h"
#include "host/runtime.h"

namespace foundry::host {

struct HostPipeline : Pipeline {
  HostPipeline(Executor& executor, Kernel kernel, const msl_kernel_entry* entry)
      : Pipeline(executor, std::move(kernel)), entry(entry) {}

  const msl_kernel_entry* entry; // of the library that it was compiled to, which stays loaded
};

} // namespace foundry::host
