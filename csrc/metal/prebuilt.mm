#include "metal/prebuilt.h"

#include <map>
#include <mutex>
#include <set>

#include <c10/util/Exception.h>

#include "core/disk_cache.h"
#include "metal/library.h"
#include "metal/stream.h"

namespace foundry::metal {
namespace {

struct Metallib {
  std::string path;
  std::map<std::string, std::string> hashes; // of texts, by shader file
  bool asked = false;                        // it is loaded when the first kernel is looked for
  Ref<id<MTLLibrary>> library;
  std::set<std::string> kernels;

  void load();
  bool has(const Source& source, const std::string& name);
};

std::mutex mutex;
std::map<int, Metallib>& metallibs() {
  static auto* map = new std::map<int, Metallib>;
  return *map;
}

void Metallib::load() {
  asked = true;
  std::string problem; // said outside of the pool: a warning may be an exception
  if (!read_whole(path)) {
    problem = path + " is not as it was built";
  } else {
    @autoreleasepool {
      NSError* error = nil;
      const Ref<NSString*> file = string(path);
      library = Ref<id<MTLLibrary>>([device() newLibraryWithURL:[NSURL fileURLWithPath:file.get()] error:&error]);
      if (!library) problem = text(error);
      for (NSString* name in [library.get() functionNames]) kernels.insert(text(name));
    }
  }
  if (!library)
    TORCH_WARN("torch_foundry: the kernels that were compiled when the package was built do not load, and are compiled "
               "when they are used (",
               problem, ")");
}

bool Metallib::has(const Source& source, const std::string& name) {
  const auto hash = hashes.find(source.file);
  if (hash == hashes.end() || hash->second != content_hash(source.text)) return false;
  if (!asked) load();
  return kernels.count(name) > 0;
}

} // namespace

void add_metallib(int version, const std::string& path, const std::vector<std::string>& files,
                  const std::vector<std::string>& hashes) {
  TORCH_CHECK_VALUE(files.size() == hashes.size(), "one hash for each file of a metallib");
  Metallib made;
  made.path = path;
  for (size_t i = 0; i < files.size(); i++) made.hashes[files[i]] = hashes[i];
  std::lock_guard<std::mutex> lock(mutex);
  if (path.empty())
    metallibs().erase(version);
  else
    metallibs()[version] = std::move(made);
}

Ref<id<MTLLibrary>> prebuilt_library(const Source& source, const std::string& name, int version, bool exact) {
  std::lock_guard<std::mutex> lock(mutex);
  for (auto each = metallibs().rbegin(); each != metallibs().rend(); ++each) {
    if (each->first > version || (exact && each->first != version)) continue;
    if (each->second.has(source, name)) return Ref<id<MTLLibrary>>::retained(each->second.library.get());
  }
  return {};
}

std::vector<int> metallib_versions() {
  std::lock_guard<std::mutex> lock(mutex);
  std::vector<int> versions;
  for (const auto& [version, made] : metallibs()) versions.push_back(version);
  return versions;
}

} // namespace foundry::metal
