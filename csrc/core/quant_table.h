// The host's view of the weight formats in shaders/quant: sizes for checks, policy names for kernels, packers for
// Python.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace foundry {

struct QuantFormat {
  int index;          // position in the table: the format's part of a variant index
  const char* policy; // the type that kernels are instantiated with
  const char* name;
  int gguf_type;      // -1: no GGUF file has it
  int64_t block_size; // weights in a block; 1 for dense formats
  int64_t block_bytes;
  int64_t alignment; // of a block in memory
  int64_t word;      // bytes that kernels can read at once where rows are aligned to them; 0 if that is of no use
  // Null for dense formats, and where weights can't be packed as this.
  void (*pack)(const float* weights, void* blocks, int64_t n);
  void (*unpack)(const void* blocks, float* weights, int64_t n);

  bool packed() const { return block_size > 1; }
};

constexpr int kMaxFormats = 128; // size of per-format pipeline tables

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
