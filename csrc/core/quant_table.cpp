#include "core/quant_table.h"

#include <torch/library.h>

#include "core/check.h"
#include "quant/format.h"

namespace foundry {
namespace {

using Numbers = std::vector<int64_t>;
using Fields = std::vector<std::tuple<int64_t, std::string>>; // byte and type of each scale

c10::Dict<std::string, std::tuple<Numbers, Fields>> describe_formats() {
  c10::Dict<std::string, std::tuple<Numbers, Fields>> dict;
  for (const QuantFormat& f : quant_formats()) {
    Fields fields;
    for (const Scales& s : f.scales)
      for (int64_t i = 0; i < s.count; i++) fields.emplace_back(s.offset + i, s.type);
    Numbers numbers{f.gguf_type, f.block_size, f.block_bytes, f.pack != nullptr, f.whole, f.searched};
    dict.insert(f.name, std::tuple{std::move(numbers), std::move(fields)});
  }
  return dict;
}

} // namespace

c10::ArrayRef<QuantFormat> quant_formats() { return quant_table(); }

const QuantFormat& quant_format(std::string_view name) {
  for (const QuantFormat& f : quant_table())
    if (name == f.name) return f;
  std::string known;
  for (const QuantFormat& f : quant_table()) known += (known.empty() ? "" : ", ") + std::string(f.name);
  TORCH_CHECK(false, "format: expected one of ", known, ", got '", name, "'");
}

const QuantFormat& dense_format(at::ScalarType dtype) {
  static const QuantFormat* const dense[] = {&quant_format("f32"), &quant_format("f16"), &quant_format("bf16")};
  return *dense[dtype == at::kFloat ? 0 : dtype == at::kHalf ? 1 : 2];
}

WeightMatrix weight_matrix(const char* name, const at::Tensor& weight, std::optional<std::string_view> format) {
  const QuantFormat* wanted = format ? &quant_format(*format) : nullptr;
  Check checked = check_pages(name, weight).dim(2).last_dim_contiguous(); // Gemma 4 E4B has a table of 2.8e9 numbers
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

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def("quant_formats() -> Dict(str, (int[], (int, str)[]))", &describe_formats);
}

} // namespace foundry
