#include "core/compiling.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <sstream>
#include <thread>

#include <torch/library.h>

namespace foundry {
namespace {

using Clock = std::chrono::steady_clock;

struct Waiting {
  std::mutex mutex;
  std::condition_variable changed;
  bool wanted = true;           // the line; false once it was written
  int compiling = 0, times = 0; // now, and how often there was something
  Clock::time_point since;      // while something is compiled
  Clock::duration before{0};    // spent compiling until then
  int kernels = 0, done = 0;    // of all CompileProgress
};

Waiting& waiting() {
  static auto* state = new Waiting; // never destroyed: its thread may outlive the process's last statement
  return *state;
}

constexpr auto kPatience = std::chrono::seconds(1);
constexpr auto kRefresh = std::chrono::milliseconds(200);
constexpr int kBar = 24;

std::string bar(const Waiting& w) {
  const int filled = kBar * w.done / w.kernels;
  std::ostringstream text;
  text << "\rtorch_foundry: compiling kernels (once) [" << std::string(filled, '#') << std::string(kBar - filled, ' ')
       << "] " << w.done << " of " << w.kernels;
  const auto so_far = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - w.since).count();
  if (w.done) text << ", " << so_far * (w.kernels - w.done) / w.done << " s left";
  text << "\033[K"; // what is left of a longer line goes
  return text.str();
}

void watch(int time) {
  Waiting& w = waiting();
  std::unique_lock<std::mutex> lock(w.mutex);
  const auto over = [&] { return w.compiling == 0 || w.times != time; };
  w.changed.wait_until(lock, w.since + kPatience - w.before, over);
  if (over() || !w.wanted) return;
  if (w.kernels && isatty(STDERR_FILENO)) {
    while (!over() && w.kernels) {
      std::fputs(bar(w).c_str(), stderr);
      w.changed.wait_for(lock, kRefresh, over);
    }
    std::fputs("\r\033[K", stderr);
    return;
  }
  std::fputs("torch_foundry: compiling kernels (once: they are kept for the next time)\n", stderr);
  w.wanted = false;
}

int expect(int kernels) {
  Waiting& w = waiting();
  std::lock_guard<std::mutex> lock(w.mutex);
  w.kernels += kernels;
  if (kernels < 0) w.done += kernels;
  return kernels;
}

} // namespace

CompileNotice::CompileNotice() {
  Waiting& w = waiting();
  std::lock_guard<std::mutex> lock(w.mutex);
  if (w.compiling++) return;
  w.since = Clock::now();
  w.times++;
  if (w.wanted) std::thread(watch, w.times).detach();
}

CompileNotice::~CompileNotice() {
  Waiting& w = waiting();
  std::lock_guard<std::mutex> lock(w.mutex);
  if (--w.compiling) return;
  w.before += Clock::now() - w.since;
  w.changed.notify_all();
}

CompileProgress::CompileProgress(int kernels) : kernels_(expect(kernels)) {}

CompileProgress::~CompileProgress() { expect(-kernels_); }

void CompileProgress::one() {
  std::lock_guard<std::mutex> lock(waiting().mutex);
  waiting().done++;
}

std::string first_errors(const std::string& log) {
  constexpr const char* kTelling[] = {"error",         "required from",  "detected during",
                                      "No space left", "File too large", "Disk quota"};
  std::istringstream lines(log);
  std::string line, picked;
  for (int left = 12; left > 0 && std::getline(lines, line);) {
    bool tells = false;
    for (const char* text : kTelling) tells |= line.find(text) != std::string::npos;
    if (!tells) continue;
    picked += "\n  " + line;
    left--;
  }
  return picked.empty() ? "\n  " + log.substr(0, 2000) : picked;
}

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def("_compile_notice(bool wanted) -> ()", [](bool wanted) {
    std::lock_guard<std::mutex> lock(waiting().mutex);
    waiting().wanted = wanted;
  });
}

} // namespace foundry
