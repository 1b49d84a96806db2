// How a KV cache's keys or values are stored (shaders/attention/kv_store.h), and where: one buffer for each sequence,
// or pages.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/kernel.h"
#include "core/kv_table.h"
#include "ops/options.h"

namespace foundry {

struct KvStore {
  const KvFormat& format;
  int64_t columns; // of a row, whatever its bytes

  bool packed() const { return format.bits != 0; }
  KernelArgument reader() const { return packed() ? KernelArgument(format.reader, columns) : format.reader; }
};

// The store of cache[batch or pages, kv_heads, tokens, columns or bytes]; format: none for dense ones.
KvStore kv_store(const char* name, const at::Tensor& cache, OptionalName format);

// Whether kernels may read rows in vectors; packed rows must be, which is checked.
bool kv_aligned(const char* name, const at::Tensor& cache, const KvStore& store);

// Checks table, int32 [batch, pages of a sequence], for pools of `page` tokens a page; returns log2 of that.
int check_table(const at::Tensor& table, const at::Tensor& like, int64_t batch, int64_t page);

} // namespace foundry
