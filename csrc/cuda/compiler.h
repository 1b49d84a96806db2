// Compiles translated kernels to cubins with NVRTC, through a cache on disk keyed by content. Needs no GPU.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/disk_cache.h"
#include "core/kernel.h"
#include "core/source.h"

namespace foundry::cuda {

struct Toolchain {
  std::vector<std::string> nvrtc; // paths or names of libnvrtc, tried in order
  std::string root;               // holds prelude/ and cuda/prelude/
  std::string prelude_hash;       // of the prelude's text: part of every key
  bool checked = false;           // barrier divergence is reported
  DiskCache cache;
};

// How a kernel is compiled beyond what names it: most launches are of the default variant.
struct Variant {
  uint32_t references_in_memory = 0;                       // bit i: `constant T&` at buffer i lies in device memory
  std::vector<std::pair<uint32_t, uint32_t>> inline_bytes; // buffers that are pointers to bytes by value: index, size
  uint32_t max_threads = 0;                                // registers must suffice for as many; 0: not limited
  bool operator<(const Variant& other) const;
  bool is_default() const { return references_in_memory == 0 && inline_bytes.empty() && max_threads == 0; }
};

// What is compiled: the prelude, the function constants, the shader's text and its entry "msl_entry".
std::string module_text(const Source& source, const Kernel& kernel, const Variant& variant);

// The cubin for `text`: from a cache, or compiled now. `arch`: "sm_90". A compiler error is thrown with its first
// messages, which name the .metal lines.
std::string compile_cubin(const Toolchain& toolchain, const std::string& label, const std::string& text,
                          const std::string& arch);

} // namespace foundry::cuda
