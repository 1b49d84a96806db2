#include "metal/archive.h"

#include <filesystem>
#include <mutex>
#include <vector>

#include <c10/util/Exception.h>

#include "core/disk_cache.h"
#include "metal/pipeline.h"
#include "metal/stream.h"

namespace foundry::metal {
namespace {

// Calls of Metal's on an archive are made one at a time.
struct Archive {
  std::mutex mutex;
  std::string prefix, path; // `path`: once it was opened
  Ref<id<MTLBinaryArchive>> object;
  std::vector<Ref<MTLComputePipelineDescriptor*>> missing; // what it had no pipeline for

  void open();
};

Archive& archive() {
  static auto* made = new Archive;
  return *made;
}

Ref<id<MTLBinaryArchive>> make_archive(const std::string& path, std::string& problem) {
  const Ref<MTLBinaryArchiveDescriptor*> descriptor([[MTLBinaryArchiveDescriptor alloc] init]);
  if (!path.empty()) {
    const Ref<NSString*> file = string(path);
    descriptor.get().url = [NSURL fileURLWithPath:file.get()];
  }
  NSError* error = nil;
  Ref<id<MTLBinaryArchive>> made([device() newBinaryArchiveWithDescriptor:descriptor.get() error:&error]);
  if (!made) problem = text(error);
  return made;
}

// Reads the file; what can't be read is left out, and written anew by `save_archive`.
void Archive::open() {
  if (prefix.empty() || !path.empty()) return;
  path = prefix + family() + ".archive";
  std::string problem;
  std::error_code ignored;
  const std::filesystem::path file(path);
  if (find_entry({{}, file.parent_path()}, file.filename()))
    object = make_archive(path, problem);
  else if (std::filesystem::exists(file, ignored))
    problem = "it is not as it was written";
  if (!object) object = make_archive("", problem);
  if (!problem.empty())
    TORCH_WARN("torch_foundry: the archive of compiled kernels ", path, object ? " is not used" : " can't be made",
               " (", problem, ")");
}

} // namespace

void use_archive(const std::string& prefix) {
  Archive& own = archive();
  std::lock_guard<std::mutex> lock(own.mutex);
  own.prefix = prefix;
  own.path.clear();
  own.object = {};
  own.missing.clear();
}

void save_archive() {
  Archive& own = archive();
  std::lock_guard<std::mutex> lock(own.mutex);
  bool changed = false;
  std::string problem;
  try {
    @autoreleasepool {
      for (const auto& descriptor : own.missing) {
        NSError* ignored = nil; // its pipeline is there, whether or not it can be kept
        changed |= bool([own.object.get() addComputePipelineFunctionsWithDescriptor:descriptor.get() error:&ignored]);
      }
    }
    own.missing.clear();
    if (!changed) return;
    const std::filesystem::path path(own.path);
    NewEntry entry({{}, path.parent_path()}, path.filename());
    @autoreleasepool {
      NSError* error = nil;
      const Ref<NSString*> file = string(entry.part());
      if (![own.object.get() serializeToURL:[NSURL fileURLWithPath:file.get()] error:&error]) problem = text(error);
    }
    if (problem.empty()) entry.keep();
  } catch (const c10::Error& error) {
    problem = error.what_without_backtrace();
  } catch (...) { // Metal's
    problem = "Metal raised an exception";
  }
  if (!problem.empty())
    TORCH_WARN("torch_foundry: the archive of compiled kernels ", own.path, " was not written (", problem, ")");
}

Ref<id<MTLComputePipelineState>> new_pipeline(MTLComputePipelineDescriptor* descriptor, MTLPipelineOption options,
                                              MTLAutoreleasedComputePipelineReflection* reflection, NSError** error) {
  Archive& own = archive();
  const auto make = [&](MTLPipelineOption how) {
    return Ref<id<MTLComputePipelineState>>([device() newComputePipelineStateWithDescriptor:descriptor
                                                                                    options:how
                                                                                 reflection:reflection
                                                                                      error:error]);
  };
  {
    std::lock_guard<std::mutex> lock(own.mutex);
    own.open();
    if (!own.object) return make(options);
    descriptor.binaryArchives = [NSArray arrayWithObject:own.object.get()];
    const auto hit = static_cast<MTLPipelineOption>(options | MTLPipelineOptionFailOnBinaryArchiveMiss);
    if (auto found = make(hit)) return found;
  }
  auto made = make(options); // side by side with those of other threads
  std::lock_guard<std::mutex> lock(own.mutex);
  // Added when it is saved: adding may compile once more, and only one thread at a time may do it.
  if (made && own.object) own.missing.push_back(Ref<MTLComputePipelineDescriptor*>::retained(descriptor));
  return made;
}

} // namespace foundry::metal
