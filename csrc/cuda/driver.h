// The driver API, loaded when it is first needed: the extension also loads where there is no driver.
#pragma once

#include <cuda.h>

#include <c10/util/Exception.h>

namespace foundry::cuda {

// cuda.h renames some functions to their newest version; the list goes through those macros.
#define FOUNDRY_DRIVER_FUNCTIONS(X)                                                                                    \
  X(cuInit)                                                                                                            \
  X(cuDeviceGet)                                                                                                       \
  X(cuDeviceGetAttribute)                                                                                              \
  X(cuDeviceGetName)                                                                                                   \
  X(cuDevicePrimaryCtxRetain)                                                                                          \
  X(cuCtxGetCurrent)                                                                                                   \
  X(cuCtxPushCurrent)                                                                                                  \
  X(cuCtxPopCurrent)                                                                                                   \
  X(cuModuleLoadData)                                                                                                  \
  X(cuModuleGetFunction)                                                                                               \
  X(cuModuleGetGlobal)                                                                                                 \
  X(cuMemcpyDtoH)                                                                                                      \
  X(cuFuncGetAttribute)                                                                                                \
  X(cuFuncSetAttribute)                                                                                                \
  X(cuCtxGetDevice)                                                                                                    \
  X(cuFuncLoad)                                                                                                        \
  X(cuLaunchKernelEx)                                                                                                  \
  X(cuStreamIsCapturing)                                                                                               \
  X(cuGraphCreate)                                                                                                     \
  X(cuGraphAddKernelNode)                                                                                              \
  X(cuGraphInstantiateWithFlags)                                                                                       \
  X(cuGraphLaunch)                                                                                                     \
  X(cuGraphDestroy)                                                                                                    \
  X(cuGraphExecDestroy)                                                                                                \
  X(cuGetErrorString)

struct Driver {
#define FOUNDRY_DECLARE(name) decltype(&::name) name##_;
  FOUNDRY_DRIVER_FUNCTIONS(FOUNDRY_DECLARE)
#undef FOUNDRY_DECLARE
  decltype(&::cuGraphAddDependencies_v2) cuGraphAddDependencies_v2_; // null in drivers before CUDA 12.3
};

const Driver& driver(); // throws where there is none

void check(CUresult result, const char* what);

// Makes `context` the thread's current one while it lives.
class ContextGuard {
public:
  explicit ContextGuard(CUcontext context);
  ~ContextGuard();
  ContextGuard(const ContextGuard&) = delete;
  ContextGuard& operator=(const ContextGuard&) = delete;

private:
  bool pushed_ = false;
};

} // namespace foundry::cuda
