// Weight matrices as the ops' arguments: dense, or in one of the formats of core/quant_blocks.h.
#pragma once

#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "core/quant_blocks.h"

namespace foundry {

c10::ArrayRef<QuantFormat> quant_formats();
const QuantFormat& quant_format(std::string_view name);
const QuantFormat& dense_format(at::ScalarType dtype);

// A weight matrix W[n, k] as kernels see it: rows of blocks.
struct WeightMatrix {
  const QuantFormat& format;
  int64_t n, k;
  int64_t row_blocks; // blocks from the start of a row to that of the next
};

// Checks `weight` as `format`: uint8 [n, bytes] when packed; when dense (or not given), f32, f16 or bf16 [n, k].
WeightMatrix weight_matrix(const char* name, const at::Tensor& weight, std::optional<std::string_view> format);

// Whether a packed weight's rows begin at multiples of the format's words.
bool in_words(const WeightMatrix& matrix, const at::Tensor& weight);

// Refuses, before it is allocated, a result of more elements than kernels can index.
void check_output_size(int64_t rows, int64_t columns);

} // namespace foundry
