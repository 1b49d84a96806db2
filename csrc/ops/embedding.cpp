// Rows of a table of any format, looked up by id: y = scale * dtype(W[ids]), then + residual.
#include "embedding/embedding.h"

#include "core/op.h"
#include "core/quant_table.h"
#include "ops/layout.h"
#include "ops/options.h"
#include "quant/format.h"

namespace foundry {
namespace {

// Ids in host memory are checked here, where it costs nothing. The kernel itself never reads outside the table: on a
// device a wrong id gives a row of NaN.
template <typename Id> void check_ids(const at::Tensor& ids, int64_t vocab) {
  const at::Tensor dense = ids.contiguous();
  const Id* p = static_cast<const Id*>(dense.const_data_ptr()); // its dtype was checked
  for (int64_t i = 0; i < ids.numel(); i++)
    TORCH_CHECK_INDEX(p[i] >= 0 && p[i] < vocab, "ids: expected values in [0, ", vocab, "), got ", p[i]);
}

at::Tensor embedding(const at::Tensor& ids, const at::Tensor& weight, OptionalName format, at::ScalarType dtype,
                     double scale, bool first_if_unknown, const OptionalTensor& residual) {
  const WeightMatrix w = weight_matrix("weight", weight, format);
  check("ids", ids).dtype({at::kLong, at::kInt}).device(weight);
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(w.k);
  const float factor = finite("scale", scale);
  check_output_size(ids.numel(), w.k);
  at::Tensor y = at::empty(shape, weight.options().dtype(dtype));
  check("output", y).floating();
  if (residual) {
    check("residual", *residual).like(y).contiguous();
    check_same_shape("residual", *residual, "the output", y);
  }
  if (y.numel() == 0) return y;

  const bool wide_ids = ids.scalar_type() == at::kLong;
  if (ids.is_cpu() && !first_if_unknown) wide_ids ? check_ids<int64_t>(ids, w.n) : check_ids<int32_t>(ids, w.n);
  const bool aligned = w.format.packed() || (w.k % chunk == 0 && aligned_rows(weight));
  const KernelKey key("embedding.metal", "embedding",
                      {w.format.policy, dtype, wide_ids ? "long" : "int", aligned ? 8 : 1},
                      {{FC_EMBEDDING_RESIDUAL, residual.has_value()}});
  const uint32_t row_threads = ceil_div(w.k, chunk);
  const EmbeddingArgs args{
      u32(w.n), u32(w.k), u32(w.row_blocks), row_threads, first_if_unknown, factor, rows_of("ids", ids.unsqueeze(-1))};
  const int64_t row_bytes = w.k / w.format.block_size * w.format.block_bytes;
  Launch(weight.device(), key)
      .in(ids)
      .in(weight)
      .in(residual)
      .out(y)
      .args(args)
      .min_bytes(ids.nbytes() + ids.numel() * row_bytes + y.nbytes() * (residual ? 2 : 1))
      .run(per_element(ids.numel() * row_threads));
  return y;
}

} // namespace

FOUNDRY_OP("embedding(Tensor ids, Tensor weight, str? format, ScalarType dtype, float scale=1.0, "
           "bool first_if_unknown=False, Tensor? residual=None) -> Tensor",
           "embedding", embedding)

} // namespace foundry
