// One library for all kernels that are wanted of a folder of shaders, in place of one for each.
#pragma once

#import <Metal/Metal.h>

#include <memory>
#include <vector>

#include "core/executor.h"
#include "metal/objc.h"

namespace foundry::metal {

// For as long as the result lives, the first of these kernels that is compiled brings the others of its folder along.
// Those that a metallib has, or that are alone, take no part.
std::shared_ptr<void> make_batch(const std::vector<Kernel>& kernels);

// The library of a batch that has `source`'s kernel. Empty where none has it, and where the texts don't compile
// together, which a warning says.
Ref<id<MTLLibrary>> batch_library(const Source& source, const Kernel& kernel);

} // namespace foundry::metal
