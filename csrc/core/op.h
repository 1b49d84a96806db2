// All that an op needs. Ops know tensors, kernels and grids; never which executor runs them.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "core/check.h"
#include "core/grid.h"
#include "core/kernel.h"
#include "core/launch.h"

// Defines an op and registers `fn` for every device: `executor` refuses those that have none. There is no autograd: a
// backward through the op raises instead of giving zeros. Fake (meta) implementations are in Python, where sizes may be
// symbolic.
//   FOUNDRY_OP("glu(Tensor gate, Tensor up, str activation) -> Tensor", "glu", glu)
#define FOUNDRY_OP(schema, name, fn)                                                                                   \
  FOUNDRY_DIFFERENTIABLE_OP(schema, name, fn, torch::autograd::autogradNotImplementedFallback())

// The same for an op with a backward; `autograd` is called in its place wherever autograd might record.
#define FOUNDRY_DIFFERENTIABLE_OP(schema, name, fn, autograd)                                                          \
  TORCH_LIBRARY_FRAGMENT(torch_foundry, m) { m.def(schema); }                                                          \
  TORCH_LIBRARY_IMPL(torch_foundry, CompositeExplicitAutograd, m) { m.impl(name, &fn); }                               \
  TORCH_LIBRARY_IMPL(torch_foundry, Autograd, m) { m.impl(name, autograd); }
