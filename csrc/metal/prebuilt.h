// Kernels that Apple's compiler made when the package was built: a metallib for each language level.
#pragma once

#import <Metal/Metal.h>

#include <string>
#include <vector>

#include "core/source.h"
#include "metal/objc.h"

namespace foundry::metal {

// Makes a metallib known, or with an empty path unknown. `files` and `hashes`: the shader files it was made of, and
// content_hash of their texts.
void add_metallib(int version, const std::string& path, const std::vector<std::string>& files,
                  const std::vector<std::string>& hashes);

// The library that has `source`'s kernel `name`, at most as new as `version` (exactly that, if `exact`). Empty where
// none was made, where it was made from another text, and where it doesn't load, which a warning says.
Ref<id<MTLLibrary>> prebuilt_library(const Source& source, const std::string& name, int version, bool exact);

// Levels of the metallibs that are known, oldest first.
std::vector<int> metallib_versions();

} // namespace foundry::metal
