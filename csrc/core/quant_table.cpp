#include "core/quant_table.h"

#include <vector>

#include <torch/library.h>

#include "core/check.h"

#define FOUNDRY_FORMAT(policy, name, gguf_type)                                                                        \
  static const int name##_index = register_format<policy>(#policy, #name, gguf_type);
#include "quant/format.h"

namespace foundry {
namespace {

std::vector<QuantFormat>& table() {
  static std::vector<QuantFormat> formats;
  return formats;
}

template <typename Q> void pack_blocks(const float* weights, void* blocks, int64_t n) {
  for (int64_t i = 0; i < n; i++, weights += Q::block_size) {
    typename Q::block& block = static_cast<typename Q::block*>(blocks)[i];
    bool finite = true;
    for (int j = 0; j < Q::block_size; j++) finite = finite && std::isfinite(weights[j]);
    TORCH_CHECK(finite, "weight: expected finite values, got NaN or infinity");
    Q::pack(weights, block);
    float w[chunk];
    const float d = Q::unpack(block, 0, 0, w); // 1 where there is an offset, and the scale is in the weights
    TORCH_CHECK(std::isfinite(d * w[0]), "weight: values too large for the scale of the format");
  }
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
  QuantFormat format{
      static_cast<int>(table().size()), policy, name,    gguf_type, Q::block_size, sizeof(typename Q::block),
      alignof(typename Q::block),       0,      nullptr, nullptr};
  if constexpr (Q::has_codes) format.word = Q::word;
  if constexpr (Q::block_size > 1) {
    if constexpr (requires { &Q::pack; }) format.pack = &pack_blocks<Q>;
    format.unpack = &unpack_blocks<Q>;
  }
  TORCH_INTERNAL_ASSERT(format.index < kMaxFormats, "more weight formats than kMaxFormats");
  table().push_back(format);
  return format.index;
}

} // namespace
} // namespace foundry

#include "quant/formats.h" // runs register_format for each

namespace foundry {
namespace {

c10::Dict<std::string, std::vector<int64_t>> describe_formats() {
  c10::Dict<std::string, std::vector<int64_t>> dict;
  for (const QuantFormat& f : quant_formats())
    dict.insert(f.name, std::vector<int64_t>{f.gguf_type, f.block_size, f.block_bytes, f.pack != nullptr});
  return dict;
}

} // namespace

c10::ArrayRef<QuantFormat> quant_formats() { return table(); }

const QuantFormat& quant_format(std::string_view name) {
  for (const QuantFormat& f : table())
    if (name == f.name) return f;
  std::string known;
  for (const QuantFormat& f : table()) known += (known.empty() ? "" : ", ") + std::string(f.name);
  TORCH_CHECK(false, "format: expected one of ", known, ", got '", name, "'");
}

const QuantFormat& dense_format(at::ScalarType dtype) {
  static const QuantFormat* const dense[] = {&quant_format("f32"), &quant_format("f16"), &quant_format("bf16")};
  return *dense[dtype == at::kFloat ? 0 : dtype == at::kHalf ? 1 : 2];
}

WeightMatrix weight_matrix(const char* name, const at::Tensor& weight, std::optional<std::string_view> format) {
  const QuantFormat* wanted = format ? &quant_format(*format) : nullptr;
  Check checked = check(name, weight).dim(2).last_dim_contiguous();
  if (!wanted || !wanted->packed()) {
    checked.floating();
    const QuantFormat& actual = dense_format(weight.scalar_type());
    TORCH_CHECK(!wanted || wanted == &actual, name, ": expected ", format.value_or(""), " weights, got ", actual.name);
    return {actual, weight.size(0), weight.size(1), weight.stride(0)};
  }
  checked.dtype({at::kByte});
  const int64_t bytes = weight.size(1), block = wanted->block_bytes;
  TORCH_CHECK(bytes % block == 0 && weight.stride(0) % block == 0, name, ": expected rows of whole ", wanted->name,
              " blocks of ", block, " bytes, got ", bytes, " bytes with strides ", weight.strides());
  TORCH_CHECK(reinterpret_cast<uintptr_t>(weight.const_data_ptr()) % wanted->alignment == 0, name,
              ": expected an address that is a multiple of ", wanted->alignment, " bytes");
  return {*wanted, weight.size(0), bytes / block * wanted->block_size, weight.stride(0) / block};
}

bool in_words(const WeightMatrix& matrix, const at::Tensor& weight) {
  const QuantFormat& format = matrix.format;
  return format.word && reinterpret_cast<uintptr_t>(weight.const_data_ptr()) % format.word == 0 &&
         weight.size(-1) % format.word == 0 && (matrix.n == 1 || weight.stride(0) % format.word == 0);
}

void check_output_size(int64_t rows, int64_t columns) {
  TORCH_CHECK(columns == 0 || rows <= INT32_MAX / columns, "output: expected at most 2^31-1 elements, got [", rows,
              ", ", columns, "] (kernels index with 32 bits)");
}

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) { m.def("quant_formats() -> Dict(str, int[])", &describe_formats); }

} // namespace foundry
