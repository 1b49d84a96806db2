// From MSL text to a pipeline, by Apple's compiler.
#pragma once

#import <Metal/Metal.h>

#include <string>
#include <vector>

#include "core/executor.h"
#include "metal/objc.h"

namespace foundry::metal {

// The MSL version that kernels are compiled as, from 3.1 (bfloat) on: 310, 320 or 400. Default: the highest that this
// system's compiler knows.
int language_version();
void set_language_version(int version); // 0: default. Throws for one that the system doesn't know
std::string language_name(int version); // "3.1"

// The name that the kernel has in its library. Of a template's instance it is the entry as an identifier
// (metallib.py makes the same one): that Metal takes other characters is not documented.
std::string library_name(const Kernel& kernel);

// A library's text: those of `sources`, and an instantiation of each template of our own among `kernels`, under the
// name by which it is asked for.
std::string library_text(const std::vector<const Source*>& sources, const std::vector<Kernel>& kernels);

// Compiles a library's text, or says in `problem` why not. Inside of a pool.
Ref<id<MTLLibrary>> compiled_library(const std::string& text_of, std::string& problem);

// Whether a metallib has `source`'s kernel of that name in the library.
bool has_prebuilt(const Source& source, const std::string& name);

// The pipeline for `kernel` of `source`, with its function constants. Throws with the compiler's messages, which name
// the .metal line. `buffers`: gets a bit for each buffer index that the kernel uses. `threads`: that a threadgroup must
// be able to have; 0: as many as the compiler's choice of registers leaves. `indirect`: for use in indirect command
// buffers, which drivers may refuse: then it is empty.
Ref<id<MTLComputePipelineState>> make_pipeline(const Source& source, const Kernel& kernel, uint32_t& buffers,
                                               NSUInteger threads = 0, bool indirect = false);

} // namespace foundry::metal
