// How a KV cache's keys or values are stored (shaders/kv_store.h), and where: one buffer for each sequence, or pages.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace foundry {

// kind: 0, 1, 2 for dense float32, float16, bfloat16; 3, 4 for q8_0, q4_0. columns: of a row, whatever its bytes.
struct KvStore {
  int kind;
  int64_t columns;

  static constexpr int kinds = 5;
  bool packed() const { return kind > 2; }
  std::string policy() const; // the type that kernels read it with
  const char* writer() const; // and that they write it with (shaders/kv_pack.h)
};

// The store of cache[batch or pages, kv_heads, tokens, columns or bytes]; format: none for dense ones.
KvStore kv_store(const char* name, const at::Tensor& cache, std::optional<std::string_view> format);

// Whether kernels may read rows in vectors; packed rows must be, which is checked.
bool kv_aligned(const char* name, const at::Tensor& cache, const KvStore& store);

// Checks table, int32 [batch, pages of a sequence], for pools of `page` tokens a page; returns log2 of that.
int check_table(const at::Tensor& table, const at::Tensor& like, int64_t batch, int64_t page);

} // namespace foundry
