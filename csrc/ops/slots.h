// States of recurrent mixers, in numbered slots: `torch_foundry/ops/gated_delta.py` says how.
#pragma once

#include "core/op.h"

namespace foundry {

// Which tokens are whose, and which states a step reads and writes.
inline void check_slots(const at::Tensor& runs, const at::Tensor& table, const at::Tensor& count,
                        const at::Tensor& like) {
  Dim N("sequences"), S("slots");
  check("runs", runs).device(like).dtype({at::kInt}).shape({N, 2}).last_dim_contiguous();
  check("table", table).device(like).dtype({at::kInt}).shape({N, S}).last_dim_contiguous();
  check("count", count).device(like).dtype({at::kInt}).shape({N});
  TORCH_CHECK(S >= 2, "table: expected at least two slots a sequence, got ", table.sizes());
}

} // namespace foundry
