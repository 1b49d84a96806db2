#include "core/subnormals.h"

#include <cstring>

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "core/device_answers.h"
#include "core/executor.h"
#include "linear/subnormals.h"

namespace foundry {

// Launched by the executor itself, and no business of modes of Python's: it is part of no graph that captures, and
// isn't counted.
bool Executor::keeps_subnormals(c10::Device device) {
  constexpr uint8_t codes[4 * subnormal_words] = {1, 2, 3, 8, 15, 16, 31, 48, 64, 100, 127, 128, 160, 200, 240, 255};
  SubnormalArgs args{{}, 0x1p24f};
  static_assert(sizeof codes == sizeof args.words, "a byte a code");
  std::memcpy(args.words, codes, sizeof codes);
  const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::DispatchKeySet{c10::DispatchKey::Python});
  try {
    const at::Tensor out = at::zeros({2 * int64_t(sizeof codes)}, at::TensorOptions().device(device).dtype(at::kFloat));
    Pipeline& kernel = pipeline(device, KernelKey("subnormals.metal", "subnormal_codes"));
    const Binding bindings[] = {{&out, nullptr, 0, Access::write}, {nullptr, &args, sizeof args, Access::read}};
    kernel.executor.launch(kernel, {bindings, {}, per_element(subnormal_words, subnormal_words)});
    const at::Tensor found = out.cpu();
    const auto* numbers = static_cast<const float*>(found.const_data_ptr());
    for (const uint8_t code : codes) {
      const bool added = *numbers++ == float(code) + 0.5f, taken_off = *numbers++ == float(code) - subnormal_zero;
      if (!added || !taken_off) return false;
    }
    return true;
  } catch (...) { // a kernel that doesn't compile, a GPU that is none
    return false;
  }
}

bool keeps_subnormals(c10::Device device) {
  static DeviceAnswers answers;
  return answers.get(device, [device] { return executor(device).keeps_subnormals(device); });
}

} // namespace foundry
