// Rows of a table of any format by id, rounded to T, then scaled: y[i] = scale * T(W[ids[i]]) (+ residual[i], after
// another rounding). A thread makes a chunk.
// An id outside the table reads nothing and makes a row of NaN, lest a wrong id pass for a weak token, unless it is to
// stand for the first row.
#include "embedding/embedding.h"

#include "linear/loader.h"

using namespace metal;
using namespace foundry;

constant bool has_residual [[function_constant(FC_EMBEDDING_RESIDUAL)]];

// foundry-lint: instance(embedding<[FOUNDRY_FORMAT], bfloat, int, 8>)
// foundry-lint: instance(embedding<F16, float, long, 1>)
template <typename Q, typename T, typename Id, int VEC>
[[kernel]] void embedding(
    device const Id* ids [[buffer(0)]],
    device const typename Q::block* weight [[buffer(1)]],
    device const T* residual [[buffer(2), function_constant(has_residual)]],
    device T* y [[buffer(3)]],
    constant EmbeddingArgs& args [[buffer(4)]],
    uint gid [[thread_position_in_grid]]) {
  const uint i = gid / args.row_threads;
  const uint k = gid % args.row_threads * chunk;
  const Id given = ids[row_offset(args.ids, i)];
  const bool inside = given >= 0 && given < Id(args.vocab), known = inside || args.first != 0;
  const Id id = inside ? given : Id(0);
  device const typename Q::block* row = weight + ulong(id) * args.row_blocks;

  float w[chunk];
  const float d = known ? load_chunk<Q, VEC>(row, k, args.hidden, w) : NAN;
  for (int j = 0; j < chunk; ++j)
    w[j] = args.scale * float(T(known ? d * w[j] : NAN));
  if (has_residual)
    for (uint j = 0; j < chunk && k + j < args.hidden; ++j)
      w[j] = float(T(w[j])) + float(residual[i * args.hidden + k + j]);
  device T* out = y + i * args.hidden + k;
  if (VEC == chunk) {  // rows are whole chunks: of 16 bits, one write of 16 bytes
    store(out, w);
    return;
  }
  for (uint j = 0; j < chunk && k + j < args.hidden; ++j)
    out[j] = T(w[j]);
}
