// rope_kv_dense.metal for caches of every kind (kv_store.h): packed, in pages, of another dtype, or of sequences that
// are filled differently. A simdgroup owns a head, which is rounded to T as everywhere; keys and values are packed from
// threadgroup memory.
#include "attention/new_heads.h"

#include "attention/kv_pack.h"

using namespace metal;
using namespace foundry;

constant bool in_pages [[function_constant(FC_ROPE_PAGED)]];

// Where a new token's row is, or that it is nowhere: one of those that a sequence does not have.
struct KvSlot {
  bool exists;
  uint page, slot;  // page: or the sequence
};

METAL_FUNC KvSlot kv_slot(constant RopeKvArgs& args, device const int* step, device const int* rows,
                          device const int* table, uint batch, uint token) {
  const uint capacity = args.start + args.q_len;  // with a step or rows
  int slot = int(args.start + token);
  bool exists = true;
  if (args.has_step)
    slot = int(min(uint(step[0]), args.start) + token);
  if (args.has_rows) {
    slot = rows[2 * batch] + int(token);
    exists = int(token) < rows[2 * batch + 1] && slot >= 0 && uint(slot) < capacity;
  }
  if (!in_pages || !exists)
    return {exists, batch, uint(slot)};
  const uint page = uint(table[batch * args.table_row + (uint(slot) >> args.page_shift)]);
  return {page < args.pages, page, uint(slot) & ((1u << args.page_shift) - 1)};
}

// foundry-lint: instance(rope_kv<half, float, Llama, [FOUNDRY_KV_FORMATS]Out, [FOUNDRY_KV_FORMATS]Out, 4>)
// foundry-lint: instance(rope_kv<bfloat, bfloat, Gemma, DenseOut<bfloat>, DenseOut<half>, 16>)
// EACH: elements of a head that a lane has.
template <typename T, typename Table, typename Kind, typename KStore, typename VStore, int EACH>
[[kernel]] void rope_kv(
    device const T* q [[buffer(0)]],
    device const T* k [[buffer(1)]],
    device const T* v [[buffer(2)]],
    device const Table* cosines [[buffer(3), function_constant(has_rope)]],
    device const Table* sines [[buffer(4), function_constant(has_rope)]],
    device const int* positions [[buffer(5)]],
    device const int* step [[buffer(6)]],
    device typename KStore::unit* k_cache [[buffer(7)]],
    device typename VStore::unit* v_cache [[buffer(8)]],
    device T* q_out [[buffer(9)]],
    constant RopeKvArgs& args [[buffer(10)]],
    device const T* q_norm [[buffer(11), function_constant(has_head_norm)]],
    device const T* k_norm [[buffer(12), function_constant(has_head_norm)]],
    device const int* rows [[buffer(13)]],
    device const int* table [[buffer(14)]],
    uint group [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]]) {
  threadgroup float rounded[rope_store_simdgroups][32 * EACH];
  const uint heads = args.n_heads + 2 * args.n_kv_heads, index = group * rope_store_simdgroups + simdgroup;
  const bool busy = index < args.rows * heads;
  const uint safe = busy ? index : 0;
  const uint head = safe % heads, row = safe / heads, token = row % args.q_len, batch = row / args.q_len;
  const NewHeads<T, Table, Kind> made{q, k, v, cosines, sines, positions, q_norm, k_norm};
  Head<EACH> x{batch, token, head};
  made.read(args, x, lane);
  made.make(args, has_head_norm, x, rounded[simdgroup], lane);
  if (busy && head < args.n_heads)
    x.template write<T>(args, q_out + ((batch * args.n_heads + head) * args.q_len + token) * args.head_dim, lane);
  x.template write<float>(args, (threadgroup float*)rounded[simdgroup], lane);
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (busy && head >= args.n_heads) {
    const KvSlot at = kv_slot(args, step, rows, table, batch, token);
    const uint kv_head = (head - args.n_heads) % args.n_kv_heads;
    const uint k_row = kv_head * args.k_cache_head + at.slot * args.k_cache_token;
    const uint v_row = kv_head * args.v_cache_head + at.slot * args.v_cache_token;
    threadgroup const float* row = rounded[simdgroup];
    if (at.exists && is_value(args, head))
      VStore::store(v_cache + ulong(at.page) * args.v_cache_batch + v_row, row, args.value_dim, lane);
    else if (at.exists)
      KStore::store(k_cache + ulong(at.page) * args.k_cache_batch + k_row, row, args.head_dim, lane);
  }
}
