// `linear` where autograd records: what it takes for its backward, and the backward.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/launch.h"
#include "ops/options.h"

namespace foundry {

at::Tensor linear_autograd(const at::Tensor& x, const at::Tensor& weight, OptionalName format,
                           const OptionalTensor& bias, const OptionalTensor& residual, double scale,
                           OptionalName activation, bool batch_invariant);

} // namespace foundry
