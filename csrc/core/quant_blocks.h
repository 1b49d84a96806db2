// The host's view of the weight formats in shaders/quant: sizes for checks, policy names for kernels, packers for
// Python. Without tensors, so that a test can compile it with a compiler of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace foundry {

struct Scales;

struct QuantFormat {
  int index;          // position in the table
  const char* policy; // the type that kernels are instantiated with
  const char* name;
  int gguf_type;      // -1: no GGUF file has it
  int64_t block_size; // weights in a block; 1 for dense formats
  int64_t block_bytes;
  int64_t alignment;    // of a block in memory
  int64_t word;         // bytes that kernels can read at once where rows are aligned to them; 0 if that is of no use
  bool subnormal_codes; // whether kernels can take codes for subnormal halves
  int64_t fragment_columns; // whole numbers of which kernels multiply as matrices, for few rows; 0: they can't
  int whole;                // scales at which all weights are whole numbers, 0 if packing holds such exactly; for tests
  std::span<const Scales> scales;
  bool searched; // whether packing looks for the least error, and takes importance into account
  // Packs a block. Null for dense formats, and where weights can't be packed as this.
  void (*pack)(const float* weights, const float* importance, void* block);
  void (*unpack)(const void* blocks, float* weights, int64_t n);

  bool packed() const { return block_size > 1; }
};

const std::vector<QuantFormat>& quant_table();

} // namespace foundry
