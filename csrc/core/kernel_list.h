// Which kernels calls would launch, found out without running any, and compiled before they are needed.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <torch/custom_class.h>

#include "core/executor.h"

namespace foundry {

// "FILE\nENTRY\nCONSTANTS\n", constants as "0=true 3=false ".
std::string listed_name(const Kernel& kernel);

class KernelList : public torch::CustomClassHolder {
public:
  explicit KernelList(const std::string& device); // whose kernels they are; tensors need not be there
  // The list that the calling thread fills, or null.
  static KernelList* recording();
  void start(); // from here on ops of this thread on meta tensors run nothing, and name their kernels here
  void stop();
  // Whether the pipeline is one of those, which don't run: then its kernel is part of the list.
  bool take(const Pipeline& pipeline, const Grid& grid);

  // A shape that a choice was asked for: op, format, rows, n, k (tuning.h).
  using Asked = std::tuple<std::string, std::string, int64_t, int64_t, int64_t>;
  void ask(Asked shape);
  std::vector<Asked> asked() const;

  int64_t size() const;
  // `listed_name` of each, and the threads of its largest threadgroup.
  std::vector<std::string> names() const;
  // Compiles them side by side. One that fails is left, to be compiled again, and to fail, where it is needed.
  void compile() const;

  const c10::Device device;

private:
  struct Entry {
    Kernel kernel;
    uint32_t threads;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Entry> entries_; // by name and constants
  std::set<Asked> asked_;
};

// For an executor that compiles many kernels together in less time than one by one.
class GroupCompiler {
public:
  virtual ~GroupCompiler() = default;
  // Before the kernels are compiled, each by the executor. They are together as long as the result lives.
  virtual std::shared_ptr<void> begin(const std::vector<Kernel>& kernels) = 0;
  // Compiles what a launch of `threads` threads a threadgroup needs besides the pipeline.
  virtual void finish(Pipeline& pipeline, uint32_t threads) = 0;
};
void register_group_compiler(c10::DeviceType type, GroupCompiler& compiler);

// Shader files of one group may be compiled as one text, one behind the other: they have no names in common but in
// headers. Without a group: the file itself.
std::string group_of(const std::string& file);

} // namespace foundry
