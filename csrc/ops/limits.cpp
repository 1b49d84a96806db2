// Limits and layouts that Python would otherwise repeat.
#include "ops/limits.h"

#include <cstddef>
#include <type_traits>

#include <torch/library.h>

#include "attention/kv_store.h"
#include "linear/linear.h"
#include "linear/norm_linear.h"
#include "mixers/gated_delta.h"
#include "mixers/mamba2.h"
#include "mixers/short_conv.h"
#include "moe/moe.h"
#include "norm/altup.h"
#include "sampling/sample.h"

namespace foundry {
namespace {

c10::Dict<std::string, int64_t> limits() {
  c10::Dict<std::string, int64_t> dict;
  dict.insert("least_head_dim", kLeastHeadDim);
  dict.insert("most_head_dim", kMostHeadDim);
  dict.insert("head_dim_step", kHeadDimStep);
  dict.insert("rows_together", kRowsTogether);
  dict.insert("few_rows", kFewRows);
  dict.insert("norm_linear_matrices", norm_linear_matrices);
  dict.insert("expert_tile_rows", linear_bm);
  dict.insert("max_experts", moe_max_experts);
  dict.insert("max_chosen", moe_max_chosen);
  dict.insert("max_groups", moe_max_groups);
  dict.insert("max_streams", altup_max_streams);
  dict.insert("least_page", kv_page_least);
  dict.insert("kv_block", kv_block);
  dict.insert("delta_dim", gated_delta_max_dim);
  dict.insert("delta_state", gated_delta_max_state);
  dict.insert("delta_taps", gated_delta_max_width);
  dict.insert("short_conv_taps", short_conv_max_width);
  dict.insert("mamba2_dim", mamba2_max_dim);
  dict.insert("mamba2_state", mamba2_max_state);
  dict.insert("mamba2_taps", mamba2_max_width);
  return dict;
}

// The fields of SampleParams in order, each as Python's struct module calls its type: "f temperature".
std::vector<std::string> sample_params() {
  std::vector<std::string> fields;
  size_t end = 0;
  const auto add = [&](const char* name, char type, size_t offset, size_t size) {
    TORCH_INTERNAL_ASSERT(offset == end, "SampleParams: fields are listed in order, got ", name);
    end = offset + size;
    fields.push_back(type + std::string(" ") + name);
  };
#define FIELD(name)                                                                                                    \
  using name##_type = decltype(SampleParams::name);                                                                    \
  add(#name,                                                                                                           \
      std::is_same_v<name##_type, float> ? 'f'                                                                         \
      : std::is_signed_v<name##_type>    ? 'i'                                                                         \
                                         : 'I',                                                                        \
      offsetof(SampleParams, name), sizeof(name##_type));
  FIELD(repetition)
  FIELD(presence)
  FIELD(frequency)
  FIELD(temperature)
  FIELD(min_p)
  FIELD(top_p)
  FIELD(top_k)
  FIELD(stages)
  FIELD(top_p_keep)
  FIELD(min_p_keep)
  FIELD(min_length)
  FIELD(min_new_length)
  FIELD(forced_eos_length)
  FIELD(begin_index)
  FIELD(ngram)
  FIELD(pad)
  FIELD(seed_low)
  FIELD(seed_high)
#undef FIELD
  TORCH_INTERNAL_ASSERT(end == sizeof(SampleParams), "SampleParams: a field is not listed");
  return fields;
}

// Bits that tensors of the sampler's state hold, by name.
c10::Dict<std::string, int64_t> sample_bits() {
  c10::Dict<std::string, int64_t> dict;
#define BIT(name) dict.insert(#name, name);
  BIT(rule_eos)
  BIT(rule_bad_word)
  BIT(rule_min_length)
  BIT(rule_min_new)
  BIT(rule_forced_bos)
  BIT(rule_forced_eos)
  BIT(rule_suppressed)
  BIT(rule_begin_suppressed)
  BIT(stage_top_k)
  BIT(stage_top_p)
  BIT(stage_min_p)
  BIT(stage_forced_bos)
  BIT(stage_greedy)
  BIT(error_nan)
  BIT(error_nothing)
  BIT(error_infinite)
#undef BIT
  return dict;
}

} // namespace

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def("limits() -> Dict(str, int)", &limits);
  m.def("sample_params() -> str[]", &sample_params);
  m.def("sample_bits() -> Dict(str, int)", &sample_bits);
}

} // namespace foundry
