// The host's view of the packed KV-cache formats in shaders/attention/kv_formats.h. Without tensors, so that a test can
// compile it with a compiler of its own.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>

namespace foundry {

struct KvFormat {
  const char* name;
  c10::ScalarType dtype; // of the cache's elements
  int bits;              // of a packed element; 0: dense
  bool symmetric;        // whether codes go equally far in both directions
  const char* reader;    // the type that kernels read it with; packed: of so many columns
  const char* writer;    // and that they write it with (shaders/attention/kv_pack.h)

  // Of packed ones; no columns if no row has so many bytes.
  int64_t row_bytes(int64_t columns) const;
  int64_t columns(int64_t row_bytes) const;
};

const std::vector<KvFormat>& kv_formats();

} // namespace foundry
