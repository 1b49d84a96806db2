// Pipelines in the GPU's own code, kept on disk by Metal from one process to the next, beside macOS's own cache of
// them. Where anything is wrong with the file it is as if there were none.
#pragma once

#import <Metal/Metal.h>

#include <string>

#include "metal/objc.h"

namespace foundry::metal {

// Keeps pipelines in PREFIX + the GPU's family + ".archive", which is read when the first pipeline is made. Empty: not.
void use_archive(const std::string& prefix);

// Writes what was added; nothing to do without an archive. Says so in a warning if it can't.
void save_archive();

// The device's method of that name; finds the pipeline in the archive, or remembers that it has to be added there.
Ref<id<MTLComputePipelineState>> new_pipeline(MTLComputePipelineDescriptor* descriptor, MTLPipelineOption options,
                                              MTLAutoreleasedComputePipelineReflection* reflection, NSError** error);

} // namespace foundry::metal
