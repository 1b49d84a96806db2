// Packing weights into a block format and back, on the CPU: what loading and the unfused fallback need.
#include "core/op.h"
#include "core/quant_table.h"
#include "core/threads.h"

namespace foundry {
namespace {

constexpr int64_t kWeightsPerPart = 1 << 15;

// Checks a dense f32 matrix against its packed form; returns the format.
const QuantFormat& check_pair(const at::Tensor& dense, const at::Tensor& packed, std::string_view name) {
  const WeightMatrix w = weight_matrix("packed", packed, name);
  TORCH_CHECK(w.format.packed(), "format: expected a packed format, got '", name, "'");
  check("packed", packed).contiguous();
  Dim N("rows", w.n), K("columns", w.k);
  check("weight", dense).shape({N, K}).contiguous().dtype({at::kFloat}).device(packed).disjoint("packed", packed);
  return w.format;
}

// importance: of each column, above 0; the same for all if it isn't given.
void pack_weight(const at::Tensor& weight, std::string_view format, const at::Tensor& packed,
                 const std::optional<at::Tensor>& importance) {
  const QuantFormat& f = check_pair(weight, packed, format);
  TORCH_CHECK(f.pack, "format: expected one that weights can be packed as, got '", format, "'");
  Dim K("columns", weight.size(1));
  const at::Tensor factors = importance ? *importance : at::ones({weight.size(1)}, weight.options());
  check("importance", factors).shape({K}).contiguous().dtype({at::kFloat}).device(packed);
  const auto* from = static_cast<const float*>(weight.const_data_ptr());
  const auto* factor = static_cast<const float*>(factors.const_data_ptr());
  char* to = static_cast<char*>(packed.mutable_data_ptr());
  const int64_t in_a_row = weight.size(1) / f.block_size;
  in_parts(weight.numel() / f.block_size, kWeightsPerPart / f.block_size, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++)
      f.pack(from + i * f.block_size, factor + i % in_a_row * f.block_size, to + i * f.block_bytes);
  });
}

void unpack_weight(const at::Tensor& packed, std::string_view format, const at::Tensor& weight) {
  const QuantFormat& f = check_pair(weight, packed, format);
  const char* from = static_cast<const char*>(packed.const_data_ptr());
  float* to = weight.mutable_data_ptr<float>();
  in_parts(weight.numel() / f.block_size, kWeightsPerPart / f.block_size, [&](int64_t begin, int64_t end) {
    f.unpack(from + begin * f.block_bytes, to + begin * f.block_size, end - begin);
  });
}

} // namespace

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def("pack_weight(Tensor weight, str format, Tensor(a!) packed, Tensor? importance=None) -> ()");
  m.def("unpack_weight(Tensor packed, str format, Tensor(a!) weight) -> ()");
}
TORCH_LIBRARY_IMPL(torch_foundry, CPU, m) {
  m.impl("pack_weight", &pack_weight);
  m.impl("unpack_weight", &unpack_weight);
}

} // namespace foundry
