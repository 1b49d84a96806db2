// What ops on the experts of a mixture have in common: shaders/moe/moe.h.
#pragma once

#include "core/op.h"
#include "core/quant_table.h"
#include "core/tuning.h"
#include "moe/moe.h"
#include "ops/layout.h"
#include "ops/options.h"
#include "quant/format.h"

namespace foundry {

// The experts' matrices W[experts, n, k] of one weight: dense [experts, n, k], or packed [experts, n, bytes of a row].
struct ExpertMatrices {
  WeightMatrix one; // of the first expert
  int64_t experts, expert_blocks, bytes_of_one;
  bool aligned; // rows of a dense weight, to 16 bytes
  bool words;   // pairs of a packed weight's blocks, to four bytes

  ExpertMatrices(const char* name, const at::Tensor& weight, OptionalName format, const at::Tensor& like);
};

// Which experts each token goes to: ids int32 [tokens, chosen], rows may be strided.
RoutedArgs routed_args(const at::Tensor& ids, const ExpertMatrices& first, const ExpertMatrices* second = nullptr);
RoutedArgs routed_args(const at::Tensor& ids, int64_t experts);

// Checks the matrix of a shared expert: as those of the others, where `like` is.
void check_shared(const char* name, const at::Tensor& shared, const ExpertMatrices& others, const at::Tensor& like);

// Checks biases [experts, outputs] of any strides; none: 0.
ExpertBias expert_bias(const char* name, const OptionalTensor& bias, const ExpertMatrices& of, const at::Tensor& like);

// Checks routing weights, float32 of the shape of ids, and fills in their stride.
void check_weights(const at::Tensor& weights, const at::Tensor& ids, RoutedArgs& args);

// Experts that are read for so many pairs, at most.
inline int64_t experts_read(int64_t experts, int64_t pairs) { return std::min(experts, pairs); }

} // namespace foundry
