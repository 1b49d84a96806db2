#include "sampling/argmax.h"
#include "core/op.h"
#include "ops/layout.h"

namespace foundry {
namespace {

at::Tensor argmax(const at::Tensor& logits) {
  check("logits", logits).floating().last_dim_contiguous();
  TORCH_CHECK(logits.size(-1) > 0, "logits: expected at least one element in the last dimension, got ", logits.sizes());
  at::Tensor result = at::empty(logits.sizes().slice(0, logits.dim() - 1), logits.options().dtype(at::kLong));
  const int64_t rows = row_count(logits);
  if (rows == 0) return result;

  ArgmaxArgs args{};
  args.n = u32(logits.size(-1));
  args.chunks = ceil_div(args.n, argmax_chunk);
  args.logits = rows_of("logits", logits);
  const auto device = logits.device();
  const KernelKey chunks("argmax.metal", "argmax_chunks", {logits.scalar_type()});
  const Grid grid = per_row(args.chunks, argmax_threads, rows);
  if (args.chunks == 1) { // no partials: the result stands in for the buffer that is not touched
    Launch(device, chunks).in(logits).out(result).out(result).args(args).run(grid);
    return result;
  }
  const at::Tensor partials = at::empty({rows, args.chunks, 2}, logits.options().dtype(at::kInt));
  Launch(device, chunks).in(logits).out(partials).out(result).args(args).run(grid);
  const uint32_t threads = simd_width * std::min(ceil_div(args.chunks, simd_width), 32u);
  Launch(device, {"argmax.metal", "argmax_merge"}).in(partials).out(result).args(args).run(per_row(rows, threads));
  return result;
}

} // namespace

FOUNDRY_OP("argmax(Tensor logits) -> Tensor", "argmax", argmax)

} // namespace foundry
