// The one interface between ops and whatever runs kernels (host, metal, cuda).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "core/grid.h"
#include "core/kernel.h"
#include "core/source.h"

namespace foundry {

enum class Access : uint8_t { read, write, read_write };

// One argument slot of a launch: a tensor (with its storage offset), inline bytes, or nothing.
struct Binding {
  const at::TensorBase* tensor = nullptr;
  const void* bytes = nullptr;
  uint32_t size = 0; // of `bytes`
  Access access = Access::read;
  bool weight = false; // of which each threadgroup reads its share once: worth fetching before it may start
};

struct LaunchRecord {
  c10::ArrayRef<Binding> bindings;            // position = buffer index
  c10::ArrayRef<uint32_t> threadgroup_memory; // bytes per threadgroup argument, multiples of 16
  Grid grid;
};

struct CapturedLaunch;

// Launches of a graph in the form that an executor repeats fastest.
class Replayer {
public:
  virtual ~Replayer() = default;
  virtual void replay() = 0;
};

class Executor {
public:
  virtual ~Executor() = default;
  virtual const char* name() const = 0;
  // The kind of device that tuning tables are keyed by: "host", "sm_90-h200", "apple8".
  virtual const std::string& family() const = 0;
  virtual std::unique_ptr<Pipeline> compile(const Source& source, const Kernel& kernel) = 0;
  // Stream-ordered on devices that have streams; never waits there.
  virtual void launch(Pipeline& pipeline, const LaunchRecord& record) = 0;
  // Whether kernels find subnormal halves as they are; see core/subnormals.h, which keeps the answer.
  virtual bool keeps_subnormals(c10::Device device);
  // Whether kernels may multiply by the device's tensor operations, and how wrong their products are; see
  // core/tensors.h, which keeps the answer.
  virtual bool has_tensors() { return false; }
  virtual float tensor_error(c10::Device device);
  // `launches` outlive the replayer and stay as they are. By default they are launched one by one.
  virtual std::unique_ptr<Replayer> prepare(c10::ArrayRef<CapturedLaunch> launches);
};

// The executor for tensors on `device`. Throws if this build has none for it.
Executor& executor(c10::Device device);
void register_executor(c10::DeviceType type, Executor& executor);

} // namespace foundry
