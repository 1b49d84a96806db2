// As moe_linear (moe_many.metal), for x of 16 bits and formats with Fragments: for GPUs whose matrix units outrun their
// other ones.
#include "moe/moe.h"

#include "linear/epilogue.h"
#include "linear/matrix_tile.h"

using namespace metal;
using namespace foundry;

// Rows of an expert's matrix from `first` on, those past the last as it. `address`: of the matrix, as far as a word goes.
template <typename Q> struct RowsAnywhere {
  device const uchar* matrix;
  uint address, row_bytes, first, rows;
  METAL_FUNC uint offset(uint i) const thread { return min(first + i, rows - 1) * row_bytes; }
  METAL_FUNC uint past(uint i) const thread { return sizeof(typename Q::block) % 2 ? (address + offset(i)) % 4 : 0; }
};

// As CopyWeights (matrix_rows.h), by words, a row after the other: of blocks of an odd number of bytes from the word on
// that a row begins in. Nothing behind the matrix is read.
template <typename Q, typename T, int OUTS> struct CopyWords {
  using Step = MatrixStep<Q, T, OUTS>;
  FOUNDRY_CONST uint in_row = Step::bytes / 4 + sizeof(typename Q::block) % 2;
  RowsAnywhere<Q> w;

  METAL_FUNC void copy(uint column, uint k, threadgroup uchar* to, ushort lane) const thread {
    const uint step = column / Q::block_size * uint(sizeof(typename Q::block));
    const uint bytes = k / Q::block_size * uint(sizeof(typename Q::block)) - step;
#pragma unroll 4
    for (uint row = 0; row < OUTS; ++row) {
      const uint past = w.past(row), first = w.offset(row) + step, left = w.rows * w.row_bytes - first;
      const uint there = min(in_row, (past + bytes + 3) / 4), whole = min(there, (past + left) / 4);
      device const uchar* from = w.matrix - past + first;
      threadgroup uchar* own = to + row * Step::stride;
      for (uint word = lane; word < in_row; word += simd_width)
        if (word < whole)
          copy_ahead((threadgroup uchar4*)own + word, (device const uchar4*)from + word);
      for (uint i = 4 * whole + lane; whole < there && i < past + bytes; i += simd_width)
        own[i] = from[i];
    }
  }
};

template <typename Q, typename T, int VEC, int OUTS> struct CopiesOf {
  using type = CopyWeights<Q, T, VEC, OUTS>;
  static METAL_FUNC type of(thread const RowsAnywhere<Q>& w, uint row_blocks, ushort lane) {
    const NeighbouringRows<Q> rows = {(device const typename Q::block*)w.matrix, row_blocks, w.first, w.rows};
    type copies;
    copies.find(rows, lane);
    return copies;
  }
};
template <typename Q, typename T, int OUTS> struct CopiesOf<Q, T, 4, OUTS> {
  using type = CopyWords<Q, T, OUTS>;
  static METAL_FUNC type of(thread const RowsAnywhere<Q>& w, uint, ushort) { return {w}; }
};

// VEC: bytes of W that are read at once. group.x is a tile of pairs, group.z its 8 * BLOCKS pairs.
// foundry-lint: instance(moe_matrix<Q8_0, half, 16, 16, 2, 4>)
// foundry-lint: instance(moe_matrix<Q4_K, bfloat, 8, 16, 2, 2>)
// foundry-lint: instance(moe_matrix<MXFP4, bfloat, 4, 32, 2, 4>)
template <typename Q, typename T, int VEC, int OUTS, int STEPS, int BLOCKS>
[[kernel]] void moe_matrix(
    device const T* x [[buffer(0)]],
    device const int* order [[buffer(1)]],
    device const uint* tiles [[buffer(2)]],
    device const typename Q::block* weight [[buffer(3)]],
    device const T* bias [[buffer(4)]],
    device T* y [[buffer(5)]],
    constant MoeLinearArgs& args [[buffer(6)]],
    threadgroup uint* memory [[threadgroup(0)]],
    uint3 group [[threadgroup_position_in_grid]],
    ushort tid [[thread_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort simdgroups [[simdgroups_per_threadgroup]]) {
  using Copies = CopiesOf<Q, T, VEC, OUTS>;
  constexpr uint block_bytes = sizeof(typename Q::block);
  using Tile = MatrixTile<Q, T, VEC, OUTS, STEPS, BLOCKS>;
  const uint expert = tiles[group.x * moe_tile_fields], pairs = tiles[group.x * moe_tile_fields + 2];
  const uint first = tiles[group.x * moe_tile_fields + 1] + group.z * Tile::rows;
  if (pairs <= group.z * Tile::rows)
    return;
  const uint count = min(pairs - group.z * Tile::rows, Tile::rows);
  for (uint m = tid; m < count; m += simdgroups * simd_width)
    memory[m] = uint(order[first + m]) / args.per_row;
  const Tile tile = {memory, args.split, count, lane, simdgroup, simdgroups};
  const uint n0 = group.y * tile.outputs(), blocks = args.routed.expert_blocks[0];
  const uint own = n0 + team_of(0, simdgroup, simdgroups, args.split) * OUTS;
  const RowsAnywhere<Q> w = {(device const uchar*)(weight + ulong(expert) * blocks),
                             args.address + expert * blocks * block_bytes, args.row_blocks * block_bytes,
                             min(own, args.n - 1), args.n};
  uint past[OUTS / 8];
  for (uint i = 0; i < OUTS / 8; ++i)
    past[i] = w.past(fragment_of(lane).row + 8 * i);
  const typename Copies::type copies = Copies::of(w, args.row_blocks, lane);
  tile.multiply(copies, past, x, args.k, (count + 7) / 8, args.k);
  const uint outputs = tile.outputs();
  for (uint i = tid; i < count * outputs; i += simdgroups * simd_width) {
    const uint m = i / outputs, column = i % outputs, n = n0 + column;
    if (n < args.n) {
      const float of_expert = bias_of(args.bias, bias, expert, n);
      y[ulong(order[first + m]) * args.n + n] = T(activate(args.activation, tile.sum(m, column) + of_expert));
    }
  }
}
