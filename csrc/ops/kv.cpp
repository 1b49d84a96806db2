#include "ops/kv.h"

#include <bit>

#include "core/check.h"
#include "kv_store.h"
#include "ops/layout.h"

namespace foundry {

namespace {

constexpr KvFormat kDense[] = {{"f32", at::kFloat, 0, "DenseKv<float>", "DenseOut<float>"},
                               {"f16", at::kHalf, 0, "DenseKv<half>", "DenseOut<half>"},
                               {"bf16", at::kBFloat16, 0, "DenseKv<bfloat>", "DenseOut<bfloat>"}};
constexpr KvFormat kPacked[] = {{"q8_0", at::kByte, 8, "Q8Kv", "PackedOut<8>"},
                                {"q4_0", at::kByte, 4, "Q4Kv", "PackedOut<4>"}};

} // namespace

KvStore kv_store(const char* name, const at::Tensor& cache, OptionalName format) {
  check_pages(name, cache).dim(4).last_dim_contiguous();
  if (!format) {
    check_pages(name, cache).floating();
    return {kDense[dtype_index(cache.scalar_type())], cache.size(3)};
  }
  const KvFormat& packed = named("format", *format, kPacked);
  check_pages(name, cache).dtype({packed.dtype});
  for (int64_t columns = 16; columns <= 512; columns += 16) {
    if (packed_row_bytes(u32(columns), packed.bits) == cache.size(3)) return {packed, columns};
  }
  TORCH_CHECK(false, name, ": expected rows of ", *format, ", got ", cache.sizes());
}

bool kv_aligned(const char* name, const at::Tensor& cache, const KvStore& store) {
  if (!store.packed()) return aligned_rows(cache);
  const int64_t unit = cache.size(3) % 8 == 0 ? 8 : 4;
  bool aligned = reinterpret_cast<uintptr_t>(cache.const_data_ptr()) % unit == 0;
  for (int64_t d = 0; d < 3; d++) aligned = aligned && (cache.size(d) <= 1 || cache.stride(d) % unit == 0);
  TORCH_CHECK(aligned, name, ": expected packed rows at multiples of ", unit, " bytes, got strides ", cache.strides());
  return true;
}

int check_table(const at::Tensor& table, const at::Tensor& like, int64_t batch, int64_t page) {
  Dim P("pages");
  check("block_table", table).device(like).dtype({at::kInt}).shape({batch, P}).last_dim_contiguous();
  TORCH_CHECK(page >= kv_page_least && std::has_single_bit(static_cast<uint64_t>(page)),
              "k_cache: expected pages of a power of two of at least ", kv_page_least, " tokens, got ", page);
  return std::countr_zero(static_cast<uint64_t>(page));
}

} // namespace foundry
