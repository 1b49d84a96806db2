// The inner product of kernels that multiply many rows of x with a weight, in tiles of BM x BN: a slab of x and an
// unpacked slab of W lie in threadgroup memory.
#pragma once
#include <metal_simdgroup_matrix>

#include "linear/linear.h"
#include "linear/loader.h"

namespace foundry {

// The element type of a tile: the dense type itself when both operands have it; half beside packed weights, which are
// rounded to it as torch's product has them; else f32, which takes more of everything but, where bfloat is emulated,
// fewer instructions.
template <typename Weight, typename T> struct Staged {
  using type = metal::conditional_t<metal::is_same_v<T, half>, half, float>;
};
template <typename W, typename T> struct Staged<Dense<W>, T> {
  using type = metal::conditional_t<metal::is_same_v<W, T>, T, float>;
};

// One chunk of a tile row, zero past the end of K.
template <typename Q, int VEC, typename Element>
METAL_FUNC void stage(device const typename Q::block* row, uint k, uint end, threadgroup Element* to) {
  float w[chunk];
  float d = 0.0f;
  for (int j = 0; j < chunk; ++j) w[j] = 0.0f;
  if (k < end) d = load_chunk<Q, VEC>(row, k, end, w);
  for (int j = 0; j < chunk; ++j) to[j] = Element(d * w[j]);
}

template <int ROW_TILES, int COL_TILES>
METAL_FUNC void add_runs(thread metal::simdgroup_matrix<float, 8, 8> (&sum)[ROW_TILES][COL_TILES],
                         thread metal::simdgroup_matrix<float, 8, 8> (&run)[ROW_TILES][COL_TILES]) {
  for (int i = 0; i < ROW_TILES; ++i)
    for (int j = 0; j < COL_TILES; ++j) {
      for (int e = 0; e < 2; ++e) sum[i][j].thread_elements()[e] += run[i][j].thread_elements()[e];
      run[i][j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
}

template <typename Q, typename T, int VEC> struct Tile {
  using S = typename Staged<Q, T>::type;
  FOUNDRY_CONST int BM = linear_bm;
  FOUNDRY_CONST int BN = linear_bn;
  FOUNDRY_CONST int BK = linear_bk;
  FOUNDRY_CONST int LD = BK + 16 / sizeof(S); // 16 bytes of padding against bank conflicts
  FOUNDRY_CONST int slab_floats = (BM + BN) * LD * sizeof(S) / sizeof(float);
  FOUNDRY_CONST int results = BM * BN; // take the place of the slabs in the end
  FOUNDRY_CONST int floats = slab_floats > results ? slab_floats : results;
  // Each thread stages the same chunk of a row of x and of some rows of W in every slab.
  FOUNDRY_CONST int row_chunks = BK / chunk;
  FOUNDRY_CONST int w_step = linear_tile_threads / row_chunks;
  FOUNDRY_CONST int w_rows = BN / w_step;
  static_assert(w_step == BM && BN % w_step == 0, "one chunk of x and a whole number of chunks of W per thread");

  // Row of the tile of x that thread `tid` stages; of the tile of W: that, and so on every w_step rows.
  static METAL_FUNC uint row(ushort tid) { return tid / row_chunks; }

  // memory[m * BN + n]: the product of the tile's rows m of x and n of W. All threads must call this.
  static METAL_FUNC void multiply(device const T* x_row, device const typename Q::block* thread (&w_row)[w_rows],
                                  uint end, threadgroup float* memory, ushort tid, ushort simdgroup) {
    threadgroup S* x_slab = (threadgroup S*)memory;
    threadgroup S* w_slab = x_slab + BM * LD;
    const short sm = simdgroup / 2 * (BM / 2), sn = simdgroup % 2 * (BN / 2); // this simdgroup's quarter
    // f32 products are summed in runs of a few slabs, then the runs: one long chain would round off some five times as
    // much.
    constexpr bool in_runs = metal::is_same_v<S, float>;
    metal::simdgroup_matrix<float, 8, 8> sum[BM / 16][BN / 16], run[BM / 16][BN / 16];
    for (int i = 0; i < BM / 16; ++i)
      for (int j = 0; j < BN / 16; ++j) {
        sum[i][j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        run[i][j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      }

    const uint r = row(tid), c = tid % row_chunks * chunk;
    for (uint k0 = 0; k0 < end; k0 += BK) {
      stage<Dense<T>, VEC>(x_row, k0 + c, end, x_slab + r * LD + c);
      for (int i = 0; i < BN / w_step; ++i) stage<Q, VEC>(w_row[i], k0 + c, end, w_slab + (r + i * w_step) * LD + c);
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      for (int k = 0; k < BK; k += 8) {
        metal::simdgroup_matrix<S, 8, 8> a[BM / 16], b[BN / 16];
        for (int i = 0; i < BM / 16; ++i) metal::simdgroup_load(a[i], x_slab + (sm + i * 8) * LD + k, LD);
        for (int j = 0; j < BN / 16; ++j)
          metal::simdgroup_load(b[j], w_slab + (sn + j * 8) * LD + k, LD, metal::ulong2(0, 0), true);
        for (int i = 0; i < BM / 16; ++i)
          for (int j = 0; j < BN / 16; ++j) metal::simdgroup_multiply_accumulate(run[i][j], a[i], b[j], run[i][j]);
      }
      metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
      if (in_runs && (k0 / BK + 1) % linear_run_slabs == 0) add_runs(sum, run);
    }
    add_runs(sum, run);

    for (int i = 0; i < BM / 16; ++i)
      for (int j = 0; j < BN / 16; ++j) metal::simdgroup_store(sum[i][j], memory + (sm + i * 8) * BN + sn + j * 8, BN);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  }
};

} // namespace foundry
