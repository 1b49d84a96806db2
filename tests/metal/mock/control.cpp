// `torch.ops.mock_metal`: what tests set and ask.
#include <deque>
#include <mutex>

#include <torch/library.h>

#include "rules.h"

namespace mock {
namespace {

std::mutex mutex;
struct Kept {
  std::vector<std::string> violations, noted, trace;
  std::map<std::string, int64_t> alive;
};
Kept& kept() {
  static auto* made = new Kept;
  return *made;
}
constexpr size_t kLongestTrace = 100000;

std::string text_of(const char* rule, const std::string& what) {
  return std::string("MockMetal: ") + rule + ": " + what;
}

std::atomic<int64_t>& setting(const std::string& name) {
  Settings& s = settings();
  if (name == "max_threads") return s.max_threads;
  if (name == "free_threads") return s.free_threads;
  if (name == "plain_pointers") return s.plain_pointers;
  if (name == "thread_streams") return s.thread_streams;
  if (name == "memory") return s.memory;
  if (name == "max_buffer") return s.max_buffer;
  if (name == "family") return s.family;
  if (name == "icb") return s.icb;
  if (name == "paravirtual") return s.paravirtual;
  if (name == "capturing") return s.capturing;
  if (name == "archives") return s.archives;
  if (name == "fail_command_buffer") return s.fail_command_buffer;
  if (name == "private_memory") return s.private_memory;
  if (name == "recycle") return s.recycle;
  if (name == "io") return s.io;
  if (name == "whole") return s.whole;
  if (name == "run") return s.run;
  TORCH_CHECK_VALUE(false, "the mock has no setting '", name, "'");
}

int64_t set(const std::string& name, int64_t value) { return setting(name).exchange(value); }

std::vector<std::string> take(std::vector<std::string> Kept::* list) {
  std::lock_guard<std::mutex> lock(mutex);
  std::vector<std::string> taken;
  taken.swap(kept().*list);
  return taken;
}

c10::Dict<std::string, int64_t> alive() {
  std::lock_guard<std::mutex> lock(mutex);
  c10::Dict<std::string, int64_t> dict;
  for (const auto& [kind, count] : kept().alive) dict.insert(kind, count);
  return dict;
}

} // namespace

Settings& settings() {
  static auto* made = new Settings;
  return *made;
}

void fail(const char* rule, const std::string& what) {
  const std::string text = text_of(rule, what);
  {
    std::lock_guard<std::mutex> lock(mutex);
    kept().violations.push_back(text);
  }
  throw std::runtime_error(text);
}

void note(const char* rule, const std::string& what) {
  const std::string text = text_of(rule, what);
  std::lock_guard<std::mutex> lock(mutex);
  kept().violations.push_back(text);
  kept().noted.push_back(text);
}

void throw_noted() {
  const std::vector<std::string> noted = take(&Kept::noted);
  if (!noted.empty()) throw std::runtime_error(noted.front());
}

void trace(const std::string& event) {
  std::lock_guard<std::mutex> lock(mutex);
  if (kept().trace.size() < kLongestTrace) kept().trace.push_back(event);
}

void count_object(const char* kind, int change) {
  std::lock_guard<std::mutex> lock(mutex);
  kept().alive[kind] += change;
}

void settle();       // stream.mm
void profile(bool on);
int64_t allocated(); // allocator.mm

TORCH_LIBRARY(mock_metal, m) {
  m.def("set(str name, int value) -> int", &set);
  m.def("violations() -> str[]", [] {
    take(&Kept::noted);
    return take(&Kept::violations);
  });
  m.def("trace() -> str[]", [] { return take(&Kept::trace); });
  m.def("alive() -> Dict(str, int)", &alive);
  m.def("synchronize() -> ()", &settle);
  m.def("profile(bool on) -> ()", &profile);
  m.def("allocated() -> int", &allocated);
}

} // namespace mock
