#include "ops/kv.h"

#include <bit>

#include <torch/library.h>

#include "core/check.h"
#include "attention/kv_store.h"
#include "ops/layout.h"

namespace foundry {

namespace {

constexpr KvFormat kDense[] = {{"f32", at::kFloat, 0, false, "DenseKv<float>", "DenseOut<float>"},
                               {"f16", at::kHalf, 0, false, "DenseKv<half>", "DenseOut<half>"},
                               {"bf16", at::kBFloat16, 0, false, "DenseKv<bfloat>", "DenseOut<bfloat>"}};

const KvFormat& packed_format(std::string_view name) {
  std::string known;
  for (const KvFormat& format : kv_formats()) {
    if (name == format.name) return format;
    known += (known.empty() ? "" : ", ") + std::string(format.name);
  }
  TORCH_CHECK(false, "format: expected one of ", known, ", got ", name);
}

c10::Dict<std::string, std::tuple<int64_t, bool>> describe_formats() {
  c10::Dict<std::string, std::tuple<int64_t, bool>> dict;
  for (const KvFormat& format : kv_formats())
    dict.insert(format.name, std::tuple<int64_t, bool>(format.bits, format.symmetric));
  return dict;
}

int64_t row_bytes(int64_t columns, std::string_view format) { return packed_format(format).row_bytes(columns); }
int64_t columns_of(int64_t bytes, std::string_view format) { return packed_format(format).columns(bytes); }

} // namespace

KvStore kv_store(const char* name, const at::Tensor& cache, OptionalName format) {
  check_pages(name, cache).dim(4).last_dim_contiguous();
  if (!format) {
    check_pages(name, cache).floating();
    return {kDense[dtype_index(cache.scalar_type())], cache.size(3)};
  }
  const KvFormat& packed = packed_format(*format);
  check_pages(name, cache).dtype({packed.dtype});
  const int64_t columns = packed.columns(cache.size(3));
  TORCH_CHECK(columns, name, ": expected rows of ", *format, ", got ", cache.sizes());
  return {packed, columns};
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

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def("kv_formats() -> Dict(str, (int, bool))", &describe_formats);
  m.def("kv_row_bytes(int columns, str format) -> int", &row_bytes);
  m.def("kv_columns(int row_bytes, str format) -> int", &columns_of);
}

} // namespace foundry
