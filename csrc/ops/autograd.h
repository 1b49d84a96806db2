// What ops with a backward have in common.
#pragma once

#include <string>

#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include "core/op.h"

namespace foundry {

// The op of that name, whose function has the type Fn, by way of the dispatcher: so tracing and fake tensors see what a
// forward or a backward calls.
template <class Fn> c10::TypedOperatorHandle<Fn> dispatched(const char* name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow(("torch_foundry::" + std::string(name)).c_str(), "")
      .typed<Fn>();
}

// Gradients come in any layout (that of a sum is one element, expanded); kernels want contiguous rows.
inline at::Tensor with_rows(const at::Tensor& grad) {
  return grad.dim() && grad.stride(-1) == 1 ? grad : grad.contiguous();
}

} // namespace foundry
