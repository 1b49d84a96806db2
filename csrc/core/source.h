// Where kernel text comes from: shaders by file name, as MSL and translated. Filled at import and by compile_shader.
#pragma once

#include <memory>
#include <string>

namespace foundry {

struct Source {
  std::string file;
  std::string text;       // MSL with its includes resolved: what Apple's compiler gets
  std::string translated; // the same as C++ text for the host and CUDA executors (torch_foundry/msl writes both)
  std::string hash;       // of both
};

// Registers a source under `file`; replacing it with other text starts a new source generation.
void add_source(const std::string& file, const std::string& text, const std::string& translated);

std::shared_ptr<const Source> find_source(const std::string& file); // throws if unknown

// Forgets pipelines held by ops, so that they are looked up again.
void new_generation();

// Hex SHA-1 of `text`: identity of content, not security.
std::string content_hash(const std::string& text);

} // namespace foundry
