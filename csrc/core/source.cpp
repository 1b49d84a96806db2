#include "core/source.h"

#include <map>
#include <mutex>

#include <c10/util/Exception.h>
#include <c10/util/hash.h>

#include "core/kernel.h"

namespace foundry {
namespace {
std::mutex mutex;
std::map<std::string, std::shared_ptr<const Source>>& sources() {
  static auto* map = new std::map<std::string, std::shared_ptr<const Source>>;
  return *map;
}
} // namespace

std::string content_hash(const std::string& text) { return c10::sha1(text).str(); }

std::atomic<uint32_t>& source_generation() {
  static std::atomic<uint32_t> generation{1};
  return generation;
}

void new_generation() { source_generation().fetch_add(1, std::memory_order_acq_rel); }

void add_source(const std::string& file, const std::string& text, const std::string& translated) {
  auto source = std::make_shared<Source>(Source{file, text, translated, content_hash(text + '\0' + translated)});
  std::lock_guard<std::mutex> lock(mutex);
  auto& slot = sources()[file];
  const bool changed = slot && slot->hash != source->hash;
  slot = std::move(source);
  if (changed) new_generation();
}

std::shared_ptr<const Source> find_source(const std::string& file) {
  std::lock_guard<std::mutex> lock(mutex);
  auto found = sources().find(file);
  TORCH_CHECK(found != sources().end(), "torch_foundry: no shader source named '", file, "' is registered");
  return found->second;
}

} // namespace foundry
