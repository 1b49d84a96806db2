#include "metal/batch.h"

#include <map>
#include <mutex>

#include <c10/util/Exception.h>

#include "core/compiling.h"
#include "core/kernel_list.h"
#include "metal/library.h"
#include "metal/stream.h"

namespace foundry::metal {
namespace {

// What is compiled as one: the first that asks compiles it, the others wait.
struct Group {
  std::string name;
  std::map<std::string, std::shared_ptr<const Source>> sources; // by file: the text is the same in each process
  std::map<std::string, Kernel> kernels;                        // by name in the library
  std::mutex mutex;
  bool tried = false;
  std::string problem; // why there is no library
  Ref<id<MTLLibrary>> library;

  Ref<id<MTLLibrary>> get();
};

Ref<id<MTLLibrary>> Group::get() {
  std::lock_guard<std::mutex> lock(mutex);
  if (!tried) {
    tried = true;
    std::vector<const Source*> texts;
    std::vector<Kernel> wanted;
    for (const auto& [file, source] : sources) texts.push_back(source.get());
    for (const auto& [own, kernel] : kernels) wanted.push_back(kernel);
    @autoreleasepool {
      library = compiled_library(library_text(texts, wanted), problem);
    }
  }
  return Ref<id<MTLLibrary>>::retained(library.get());
}

std::mutex mutex;
std::map<std::string, std::shared_ptr<Group>>& groups() { // by kernel
  static auto* map = new std::map<std::string, std::shared_ptr<Group>>;
  return *map;
}

std::string key_of(const Source& source, const Kernel& kernel) {
  return language_name(language_version()) + source.hash + library_name(kernel);
}

// The thread that ends them says what failed: warnings of others don't reach Python.
class Groups {
public:
  Groups(const Groups&) = delete;
  explicit Groups(const std::vector<Kernel>& kernels) {
    std::map<std::string, std::shared_ptr<Group>> made;
    std::map<std::string, std::shared_ptr<Group>> of; // by key
    for (const Kernel& kernel : kernels) {
      auto source = find_source(kernel.file);
      const std::string name = library_name(kernel);
      if (has_prebuilt(*source, name)) continue;
      auto& group = made[group_of(source->file)];
      if (!group) group = std::make_shared<Group>();
      group->name = group_of(source->file);
      of.emplace(key_of(*source, kernel), group);
      group->kernels.emplace(name, kernel);
      group->sources.emplace(source->file, std::move(source));
    }
    for (const auto& [file, group] : made) groups_.push_back(group);
    std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [key, group] : of)
      if (group->kernels.size() > 1 && groups().emplace(key, group).second) keys_.push_back(key);
  }
  ~Groups() {
    for (const auto& group : groups_) {
      std::lock_guard<std::mutex> lock(group->mutex);
      if (group->tried && !group->library)
        TORCH_WARN("torch_foundry: the kernels of shaders/", group->name,
                   " do not compile as one library, and are compiled one by one:", first_errors(group->problem));
    }
    std::lock_guard<std::mutex> lock(mutex);
    for (const std::string& key : keys_) groups().erase(key);
  }

private:
  std::vector<std::shared_ptr<Group>> groups_;
  std::vector<std::string> keys_;
};

} // namespace

std::shared_ptr<void> make_batch(const std::vector<Kernel>& kernels) {
  device().shouldMaximizeConcurrentCompilation = YES; // of the process: later kernels may as well
  return std::make_shared<Groups>(kernels);
}

Ref<id<MTLLibrary>> batch_library(const Source& source, const Kernel& kernel) {
  std::shared_ptr<Group> group;
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = groups().find(key_of(source, kernel));
    if (found == groups().end()) return {};
    group = found->second;
  }
  return group->get();
}

} // namespace foundry::metal
