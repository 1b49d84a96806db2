#include "core/tensors.h"

#include <bit>
#include <cmath>
#include <limits>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "core/device_answers.h"
#include "core/executor.h"
#include "linear/linear.h"

namespace foundry {
namespace {

struct Shape {
  int64_t m, n, k; // rows of x, of W, and their length
};
constexpr Shape kShapes[] = {{linear_tensors_bm, linear_tensors_bn, 512}, {70, 65, 200}};

// The error of one product. y = nearest - x W^T, where `nearest` is the right result in x's type: so little is left
// that what y is rounded by is nothing. One row more than there are must stay as it was.
float error_of(c10::Device device, at::ScalarType dtype, const char* policy, const Shape& shape) {
  const auto [m, n, k] = shape;
  const at::Generator random = at::make_generator<at::CPUGeneratorImpl>(m);
  const at::Tensor x = at::randn({m, k}, random).to(dtype), w = at::randn({n, k}, random).to(dtype);
  const at::Tensor wide_x = x.to(at::kDouble), wide_w = w.to(at::kDouble), truth = at::matmul(wide_x, wide_w.t());
  const at::Tensor nearest = truth.to(dtype), own_x = x.to(device), own_w = w.to(device), residual = nearest.to(device);
  const at::Tensor y = at::full({m + 1, n}, NAN, own_x.options());
  LinearArgs args{u32(m), u32(n), u32(k), u32(k), 1, activation_none, false, true, -1.0f, {}, {}};
  args.x = {1, u32(m), 0, 0, u32(k)};
  args.residual = {1, u32(m), 0, 0, u32(n)};
  Pipeline& kernel = pipeline(device, KernelKey("linear_tensors.metal", "linear_tensors", {policy, dtype, 8}));
  const Binding bindings[] = {{&own_w},
                              {&own_x},
                              {&own_x},
                              {&residual},
                              {&y, nullptr, 0, Access::write},
                              {nullptr, &args, sizeof args, Access::read}};
  const Grid grid = tiles(m, n, linear_tensors_bm, linear_tensors_bn, linear_tensors_simdgroups * simd_width);
  kernel.executor.launch(kernel, {bindings, {}, grid});
  const at::Tensor found = y.cpu().to(at::kDouble);
  if (!found[m].isnan().all().item<bool>()) return std::numeric_limits<float>::infinity();
  const at::Tensor wrong = nearest.to(at::kDouble) - found.slice(0, 0, m) - truth;
  return static_cast<float>((wrong.norm() / at::matmul(wide_x.abs(), wide_w.abs().t()).norm()).item<double>());
}

} // namespace

// As keeps_subnormals: no business of modes of Python's, part of no graph, and not counted.
float Executor::tensor_error(c10::Device device) {
  const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::DispatchKeySet{c10::DispatchKey::Python});
  float worst = 0.0f;
  try {
    for (const Shape& shape : kShapes)
      for (const auto& [dtype, policy] : {std::pair{at::kHalf, "F16"}, std::pair{at::kBFloat16, "BF16"}})
        if (const float error = error_of(device, dtype, policy, shape); !(error <= worst)) worst = error;
  } catch (...) { // a kernel that doesn't compile, a GPU that is none
    return std::numeric_limits<float>::infinity();
  }
  return std::isfinite(worst) ? worst : std::numeric_limits<float>::infinity();
}

float tensor_error(c10::Device device) {
  static DeviceAnswers answers;
  Executor& own = executor(device);
  if (!own.has_tensors()) return NAN;
  return std::bit_cast<float>(answers.get(device, [&] { return std::bit_cast<uint32_t>(own.tensor_error(device)); }));
}

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def("_tensor_error(str device) -> float[]", // the error and the most that is allowed
        [](const std::string& device) -> std::vector<double> {
          return {tensor_error(c10::Device(device)), kMostTensorError};
        });
}

} // namespace foundry
