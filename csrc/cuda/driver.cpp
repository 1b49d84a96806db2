#include "cuda/driver.h"

#include <dlfcn.h>

namespace foundry::cuda {
namespace {

#define FOUNDRY_TEXT_(name) #name
#define FOUNDRY_TEXT(name) FOUNDRY_TEXT_(name)

Driver load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library, "torch_foundry: the NVIDIA driver does not load: ", dlerror());
  Driver table{};
#define FOUNDRY_FIND(name)                                                                                             \
  table.name##_ = reinterpret_cast<decltype(table.name##_)>(dlsym(library, FOUNDRY_TEXT(name)));                       \
  TORCH_CHECK(table.name##_, "torch_foundry: the NVIDIA driver is too old: it has no ", FOUNDRY_TEXT(name));
  FOUNDRY_DRIVER_FUNCTIONS(FOUNDRY_FIND)
#undef FOUNDRY_FIND
  table.cuGraphAddDependencies_v2_ =
      reinterpret_cast<decltype(table.cuGraphAddDependencies_v2_)>(dlsym(library, "cuGraphAddDependencies_v2"));
  const CUresult result = table.cuInit_(0);
  TORCH_CHECK(result == CUDA_SUCCESS, "torch_foundry: the NVIDIA driver does not start: error ",
              static_cast<int>(result));
  return table;
}

} // namespace

const Driver& driver() {
  static const Driver table = load();
  return table;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* text = nullptr;
  driver().cuGetErrorString_(result, &text);
  TORCH_CHECK(false, "torch_foundry: ", what, ": ", text ? text : "unknown error", " (CUDA error ",
              static_cast<int>(result), ")");
}

ContextGuard::ContextGuard(CUcontext context) {
  CUcontext current = nullptr;
  check(driver().cuCtxGetCurrent_(&current), "no CUDA context");
  if (current == context) return;
  check(driver().cuCtxPushCurrent_(context), "the CUDA context cannot be used");
  pushed_ = true;
}

ContextGuard::~ContextGuard() {
  CUcontext popped = nullptr;
  if (pushed_) driver().cuCtxPopCurrent_(&popped);
}

} // namespace foundry::cuda
