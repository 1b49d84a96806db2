// Options of ops: those given by name, each with its one table, and numbers.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include <c10/util/Exception.h>

#include "linear/linear.h"

namespace foundry {

using OptionalName = std::optional<std::string_view>;

// The row of a table that is called `name`.
template <class Row, size_t N> const Row& named(const char* option, std::string_view name, const Row (&table)[N]) {
  std::string known;
  for (const Row& row : table)
    if (name == row.name) return row;
  for (const Row& row : table) known += (known.empty() ? "" : ", ") + std::string(row.name);
  TORCH_CHECK(false, option, ": expected one of ", known, ", got ", name);
}

inline float finite(const char* option, double value) {
  TORCH_CHECK(std::isfinite(value), option, ": expected a finite number, got ", value);
  return static_cast<float>(value);
}

// All activations. Ops of a gate and up take each, `linear` those of a single number.
struct Activation {
  const char *name, *policy;
  uint32_t code; // in argument structs
  bool of_pair = false;
};
inline constexpr Activation kActivations[] = {{"silu", "Silu", activation_silu},
                                              {"gelu_tanh", "GeluTanh", activation_gelu_tanh},
                                              {"gelu", "Gelu", activation_gelu},
                                              {"sigmoid", "Sigmoid", activation_sigmoid},
                                              {"relu", "Relu", activation_relu},
                                              {"relu2", "Relu2", activation_relu2},
                                              {"softplus", "Softplus", activation_softplus},
                                              {"clamped_swiglu", "ClampedSwiglu", activation_clamped_swiglu, true}};
inline const Activation& activation_named(std::string_view name) { return named("activation", name, kActivations); }

// The code of an activation of a single number.
inline uint32_t single_activation(OptionalName name) {
  if (!name) return activation_none;
  const Activation& found = activation_named(*name);
  TORCH_CHECK(!found.of_pair, "activation: expected one of a single number, got ", *name);
  return found.code;
}

struct NormKind {
  const char *name, *policy;
  float offset; // added to the weight
};
inline constexpr NormKind kNormKinds[] = {{"llama", "Llama", 0.0f}, {"olmo", "Olmo", 0.0f}, {"gemma", "Gemma", 1.0f}};

inline float epsilon(double eps) {
  TORCH_CHECK(std::isfinite(eps) && eps >= 0, "eps: expected a finite number >= 0, got ", eps);
  return static_cast<float>(eps);
}

struct Norm {
  const NormKind& kind;
  float eps;

  Norm(std::string_view name, double eps) : kind(named("kind", name, kNormKinds)), eps(epsilon(eps)) {}
};

} // namespace foundry
