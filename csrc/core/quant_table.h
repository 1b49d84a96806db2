// The host's view of the weight formats in shaders/quant: sizes for checks, policy names for kernels, packers for Python.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace foundry {

struct QuantFormat {
  int index;           // position in the table: the format's part of a variant index
  const char* policy;  // the type that kernels are instantiated with
  const char* name;
  int gguf_type;
  int64_t block_size;   // weights in a block; 1 for dense formats
  int64_t block_bytes;
  int64_t alignment;    // of a block in memory
  void (*pack)(const float* weights, void* blocks, int64_t n);          // null for dense formats
  void (*unpack)(const void* blocks, float* weights, int64_t n);

  bool packed() const { return block_size > 1; }
};

constexpr int kMaxFormats = 64;  // size of per-format pipeline tables

c10::ArrayRef<QuantFormat> quant_formats();
const QuantFormat& quant_format(const std::string& name);
const QuantFormat& dense_format(at::ScalarType dtype);

// A weight matrix W[n, k] as kernels see it: rows of blocks.
struct WeightMatrix {
  const QuantFormat& format;
  int64_t n, k;
  int64_t row_blocks;  // blocks from the start of a row to that of the next
  bool vectors;        // dense rows are aligned for four-element loads (true for packed ones, which need none)
};

// Checks `weight` as `format`: uint8 [n, bytes] when packed; when dense (or not given), f32, f16 or bf16 [n, k].
WeightMatrix weight_matrix(const char* name, const at::Tensor& weight, const std::optional<std::string>& format);

// Whether p is aligned to four elements of `itemsize` bytes.
inline bool vector_aligned(const void* p, size_t itemsize) { return reinterpret_cast<uintptr_t>(p) % (4 * itemsize) == 0; }

}  // namespace foundry
