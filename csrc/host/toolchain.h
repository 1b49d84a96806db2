// Compiles C++ text to shared libraries with the system's compiler, through a cache on disk keyed by content.
#pragma once

#include <string>
#include <vector>

#include "core/disk_cache.h"

namespace foundry::host {

struct Toolchain {
  std::vector<std::string> compiler; // the command: "g++", or "ccache" and "g++"
  std::string built_by;     // identity of the compiler of the kernels that the package ships, where there is none here
  std::string include_dir;  // csrc/host: its half of the prelude, runtime.h and its sources; ../prelude is beside it
  std::string prelude_hash; // of the prelude's text: part of every key
  std::vector<std::string> flags; // for kernels
  std::vector<std::string> runtime_flags;
  std::vector<std::string> runtime_sources; // files of the fiber runtime, in include_dir
  DiskCache cache;
};

// The shared library for `text`: from a cache, or compiled now. A compiler error is thrown with its first messages,
// which name the .metal lines. `header`, where it is given, is what the text includes first: compiled once for all.
std::string compile_library(const Toolchain& toolchain, const std::string& label, const std::string& text,
                            const std::vector<std::string>& flags, const std::string& header = "");

} // namespace foundry::host
