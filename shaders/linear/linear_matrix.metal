// y = x W^T for a packed weight and 17 to 128 rows of x of 16 bits: too many for lanes that multiply, too few to unpack
// all of W for them. For GPUs whose matrix units outrun their other ones. Here, weights go from memory into products of
// 8x8 matrices without a stop in threadgroup memory, rounded to x's type; linear_matrix_ahead: below.
#include "linear/linear.h"

#include "common/matrix_pairs.h"
#include "linear/epilogue.h"
#include "linear/loader.h"
#include "linear/matrix_tile.h"

using namespace metal;
using namespace foundry;

// A lane's share of a row of W: unit i of it, in chunks that begin at(c) behind the first.
template <typename Q, int VEC, bool InCodes = Q::has_codes> struct LaneUnit {
  using Raw = typename Q::template Codes<VEC == 16>;
  FOUNDRY_CONST int chunks = Raw::chunks;
  Raw raw;
  static METAL_FUNC uint first(uint i) { return Raw::first(i); }
  static METAL_FUNC constexpr uint at(int c) { return Raw::at(c); }
  METAL_FUNC void read(device const typename Q::block* row, uint k) thread { raw.read(row[k / Q::block_size], k); }
  METAL_FUNC void weights(uint k, int c, uint base, thread float (&w)[chunk]) const thread {
    raw.codes(k, c, base, w);
    const int group = c / (chunks / Raw::groups);
    const float scale = raw.scale(k, group) * Raw::ratio(c), offset = raw.offset(k, group);
    for (int j = 0; j < chunk; ++j) w[j] = Raw::has_offset ? fma(scale, w[j], offset) : scale * w[j];
  }
};

template <typename Q, int VEC> struct LaneUnit<Q, VEC, false> {
  FOUNDRY_CONST int chunks = Unit<Q>::chunks;
  device const typename Q::block* row;
  static METAL_FUNC uint first(uint i) { return Unit<Q>::first(i); }
  static METAL_FUNC constexpr uint at(int c) { return c * Unit<Q>::gap; }
  METAL_FUNC void read(device const typename Q::block* from, uint) thread { row = from; }
  METAL_FUNC void weights(uint k, int c, uint, thread float (&w)[chunk]) const thread {
    const float scale = Loader<Q, VEC>::load(row, k, c, 0, w);
    for (int j = 0; j < chunk; ++j) w[j] *= scale;
  }
};

// A threadgroup makes 16 outputs of 8 * BLOCKS rows; its simdgroups share K. A lane has two rows of W and one of each
// eight of x, and a quarter of the columns of a product: any, so long as those of W and x are the same.
// foundry-lint: instance(linear_matrix<Q8_0, half, 16, 8>)
// foundry-lint: instance(linear_matrix<Q4_K, bfloat, 8, 4>)
// foundry-lint: instance(linear_matrix<IQ2_XS, half, 1, 4>)
template <typename Q, typename T, int VEC, int BLOCKS>
[[kernel]] void linear_matrix(
    device const typename Q::block* weight [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device const T* residual [[buffer(3)]],
    device T* y [[buffer(4)]],
    constant LinearArgs& args [[buffer(5)]],
    threadgroup float* partial [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]],
    ushort tid [[thread_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]]) {
  using Share = LaneUnit<Q, VEC>;
  constexpr int rows = 8 * BLOCKS, outputs = linear_matrix_outputs;
  const Fragment own = fragment_of(lane);
  const uint n0 = group.x * outputs, m0 = group.y * rows, base = 0x64006400u | args.k >> 31;
  device const typename Q::block* w_row[2];
  for (int i = 0; i < 2; ++i)
    w_row[i] = weight + ulong(min(n0 + own.row + 8 * i, args.n - 1)) * args.row_blocks;
  device const T* x_row[BLOCKS];
  for (int b = 0; b < BLOCKS; ++b)
    x_row[b] = x + row_offset(args.x, min(m0 + 8 * b + own.row, args.rows - 1));

  simdgroup_matrix<float, 8, 8> sum[BLOCKS][2];
  for (int b = 0; b < BLOCKS; ++b)
    for (int i = 0; i < 2; ++i)
      sum[b][i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  const uint units = args.k / (Share::chunks * chunk), step = 4 * args.split;
  Share ahead[2];
  uint unit = 4 * simdgroup + own.column / 2;
  if (unit < units)
    for (int i = 0; i < 2; ++i)
      ahead[i].read(w_row[i], Share::first(unit));
  for (uint first = 4 * simdgroup; first < units; first += step, unit += step) {
    const Share share[2] = {ahead[0], ahead[1]};
    const uint k = Share::first(unit);
    const bool inside = unit < units;
    if (unit + step < units)
      for (int i = 0; i < 2; ++i)
        ahead[i].read(w_row[i], Share::first(unit + step));
    for (int c = 0; c < Share::chunks; ++c) {
      simdgroup_matrix<T, 8, 8> w[2][2][2];  // of the halves of a chunk
      for (int i = 0; i < 2; ++i) {
        float all[chunk];
        for (int j = 0; j < chunk; ++j) all[j] = 0.0f;
        if (inside)
          share[i].weights(k, c, base, all);
        for (int j = 0; j < chunk; ++j)
          w[j / 4][i][j / 2 % 2].thread_elements()[j % 2] = T(all[j]);
      }
      for (int b = 0; b < BLOCKS; ++b) {
        T own_x[chunk];
        for (int j = 0; j < chunk; ++j) own_x[j] = T(0.0f);
        if (inside)
          load_elements<VEC>(x_row[b] + k + Share::at(c), own_x);
        for (int h = 0; h < 2; ++h) {
          simdgroup_matrix<T, 8, 8> columns[2];
          for (int f = 0; f < 2; ++f)
            for (int e = 0; e < 2; ++e)
              columns[f].thread_elements()[e] = own_x[4 * h + 2 * f + e];
          multiply_accumulate_2x2_transposed(sum[b], w[h], columns, lane);
        }
      }
    }
  }

  for (int b = 0; b < BLOCKS; ++b)
    for (int i = 0; i < 2; ++i)
      for (int e = 0; e < 2; ++e)
        partial[(simdgroup * rows + 8 * b + own.column + e) * outputs + own.row + 8 * i] =
            sum[b][i].thread_elements()[e];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint i = tid; i < rows * outputs; i += args.split * simd_width) {
    const uint m = m0 + i / outputs, n = n0 + i % outputs;
    float total = partial[i];
    for (uint p = 1; p < args.split; ++p)
      total += partial[p * rows * outputs + i];
    if (m < args.rows && n < args.n)
      store_output(total, m, n, bias, residual, y, args);
  }
}

// The same for formats with Fragments, in tiles of 8 * BLOCKS rows (matrix_tile.h): a row has the bits that linear_rows
// gives it by matrices, if that splits K alike.
// foundry-lint: instance(linear_matrix_ahead<Q8_0, half, 16, 16, 3, 4>)
// foundry-lint: instance(linear_matrix_ahead<Q4_K, bfloat, 8, 32, 2, 2>)
// foundry-lint: instance(linear_matrix_ahead<Q4_0, half, 1, 16, 2, 8>)
template <typename Q, typename T, int VEC, int OUTS, int STEPS, int BLOCKS>
[[kernel]] void linear_matrix_ahead(
    device const typename Q::block* weight [[buffer(0)]],
    device const T* x [[buffer(1)]],
    device const T* bias [[buffer(2)]],
    device const T* residual [[buffer(3)]],
    device T* y [[buffer(4)]],
    constant LinearArgs& args [[buffer(5)]],
    threadgroup uint* memory [[threadgroup(0)]],
    uint2 group [[threadgroup_position_in_grid]],
    ushort tid [[thread_index_in_threadgroup]],
    ushort lane [[thread_index_in_simdgroup]],
    ushort simdgroup [[simdgroup_index_in_threadgroup]],
    ushort simdgroups [[simdgroups_per_threadgroup]]) {
  using Tile = MatrixTile<Q, T, VEC, OUTS, STEPS, BLOCKS>;
  const uint m0 = group.x * Tile::rows, there = min(args.rows - m0, Tile::rows);
  for (uint m = tid; m < there; m += simdgroups * simd_width)
    memory[m] = row_offset(args.x, m0 + m);
  const Tile tile = {memory, args.split, there, lane, simdgroup, simdgroups};
  const uint first = team_of(group.y, simdgroup, simdgroups, args.split) * OUTS;
  const NeighbouringRows<Q> w = {weight, args.row_blocks, min(first, args.n - 1), args.n};
  CopyWeights<Q, T, VEC, OUTS> copies;
  copies.find(w, lane);
  const uint past[OUTS / 8] = {};
  tile.multiply(copies, past, x, 1, BLOCKS, args.k);
  const uint outputs = tile.outputs();
  for (uint i = tid; i < there * outputs; i += simdgroups * simd_width) {
    const uint m = i / outputs, column = i % outputs, n = group.y * outputs + column;
    if (n < args.n)
      store_output(tile.sum(m, column), m0 + m, n, bias, residual, y, args);
  }
}
