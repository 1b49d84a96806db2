#include "core/quant_blocks.h"

#include <cmath>

#include <c10/util/Exception.h>

#define FOUNDRY_FORMAT(policy, name, gguf_type)                                                                        \
  static const int name##_index = register_format<policy>(#policy, #name, gguf_type);
#include "quant/search.h"

namespace foundry {
namespace {

std::vector<QuantFormat>& table() {
  static std::vector<QuantFormat> formats;
  return formats;
}

template <typename Q>
constexpr bool is_searched = requires(search::Weights weights, typename Q::block block) { Q::pack(weights, block); };

template <typename Q> void pack_block(const float* weights, const float* importance, void* packed) {
  typename Q::block& block = *static_cast<typename Q::block*>(packed);
  bool finite = true;
  for (int j = 0; j < Q::block_size; j++) finite = finite && std::isfinite(weights[j]);
  TORCH_CHECK(finite, "weight: expected finite values, got NaN or infinity");
  if constexpr (is_searched<Q>)
    Q::pack(search::Weights{weights, importance}, block);
  else
    Q::pack(weights, block);
  float w[chunk];
  const float d = Q::unpack(block, 0, 0, w); // 1 where there is an offset, and the scale is in the weights
  TORCH_CHECK(std::isfinite(d * w[0]), "weight: values too large for the scale of the format");
}

template <typename Q> void unpack_blocks(const void* blocks, float* weights, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    constexpr int units = Q::block_size / chunk / Q::shared;
    for (int n = 0; n < Q::block_size / chunk; n++) {
      float w[chunk];
      const typename Q::block& block = static_cast<const typename Q::block*>(blocks)[i];
      const float d = Q::unpack(block, static_cast<short>(n % units), n / units, w);
      for (float v : w) *weights++ = d * v;
    }
  }
}

template <typename Q> int register_format(const char* policy, const char* name, int gguf_type) {
  QuantFormat format{.index = static_cast<int>(table().size()),
                     .policy = policy,
                     .name = name,
                     .gguf_type = gguf_type,
                     .block_size = Q::block_size,
                     .block_bytes = sizeof(typename Q::block),
                     .alignment = alignof(typename Q::block)};
  if constexpr (Q::has_codes) format.word = Q::word;
  if constexpr (requires { Q::subnormal_codes; }) format.subnormal_codes = Q::subnormal_codes;
  if constexpr (requires { Q::fragment_columns; }) format.fragment_columns = Q::fragment_columns;
  if constexpr (Q::block_size > 1) {
    format.whole = Q::whole;
    format.scales = Q::fields;
    if constexpr (requires { &Q::pack; }) format.pack = &pack_block<Q>;
    format.searched = is_searched<Q>;
    format.unpack = &unpack_blocks<Q>;
  }
  table().push_back(format);
  return format.index;
}

} // namespace

const std::vector<QuantFormat>& quant_table() { return table(); }

} // namespace foundry

#include "quant/formats.h" // runs register_format for each
