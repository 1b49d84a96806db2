// Products of up to eight rows of x and 16 or 32 rows of W by matrices of 16 bits: eight rows take little longer than
// one, and have its bits. For GPUs whose matrix units outrun their lanes.
#pragma once
#include "common/matrix_pairs.h"
#include "common/staging.h"
#include "linear/linear.h"
#include "linear/loader.h"

namespace foundry {

// A team's rows of x, ROWS of them from the first on, those past the last one as it.
template <typename T> struct MatrixRows {
  device const T* x;
  uint row[matrix_rows]; // where each begins
  uint count;            // that differ
};

// The rows behind an RMSNorm, rounded once to T: all of them in threadgroup memory, for all of a threadgroup's
// products, in Q's pairs. In x they lie one behind the other, k elements each. `squares`: matrix_rows floats a
// simdgroup. All threads must call this. A launch runs this code once, so it pays for fetching it: what needn't be
// unrolled isn't.
template <typename Q, typename T, int VEC>
METAL_FUNC void norm_rows(thread const MatrixRows<T>& rows, device const T* weight, float offset, float eps, uint k,
                          ushort lane, ushort simdgroup, ushort simdgroups, threadgroup float* squares,
                          threadgroup uchar* to) {
  using Pair = metal::vec<T, 2>;
  const uint first = (simdgroup * simd_width + lane) * chunk, step = simdgroups * simd_width * chunk;
  device const T* const x = rows.x + rows.row[0];
  float own[matrix_rows] = {};
  for (uint at = first; at < k; at += step) {
    T v[matrix_rows][chunk];
#pragma unroll
    for (uint m = 0; m < matrix_rows; ++m) // all reads before their use
      if (m < rows.count) load_elements<VEC>(x + m * k + at, v[m]);
#pragma unroll
    for (uint m = 0; m < matrix_rows; ++m)
      if (m < rows.count)
        for (int j = 0; j < chunk; ++j) own[m] = metal::fma(float(v[m][j]), float(v[m][j]), own[m]);
  }
#pragma unroll
  for (uint m = 0; m < matrix_rows; ++m)
    if (m < rows.count) {
      const float sum = metal::simd_sum(own[m]);
      if (lane == m) squares[simdgroup * matrix_rows + m] = sum;
    }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
  float total = 0.0f; // of row `lane`
#pragma unroll 4
  for (uint s = 0; s < simdgroups; ++s) total += squares[s * matrix_rows + lane % matrix_rows];
  const float factors = metal::rsqrt(total / float(k) + eps);
#pragma unroll 1
  for (uint m = 0; m < rows.count; ++m) {
    const float factor = metal::simd_shuffle(factors, ushort(m));
#pragma unroll 1
    for (uint at = first; at < k; at += step) {
      T v[chunk], g[chunk];
      load_elements<VEC>(x + m * k + at, v);
      load_elements<VEC>(weight + at, g);
      threadgroup uint* row = (threadgroup uint*)(to + m * matrix_whole_stride(k) + at * sizeof(T));
      uint raw[chunk / 2];
      for (int j = 0; j < chunk; ++j) v[j] = T(float(v[j]) * factor * (offset + float(g[j])));
      for (int j = 0; j < chunk / 2; ++j) raw[j] = as_type<uint>(Pair(v[2 * j], v[2 * j + 1]));
      for (int j = 0; j < chunk / 2; j += 2) {
        Pair pairs[2];
        Q::template Fragments<T>::pairs(metal::uint2(raw[j], raw[j + 1]), pairs);
        for (int f = 0; f < 2; ++f) row[j + f] = as_type<uint>(pairs[f]);
      }
    }
  }
  metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
}

// What threadgroup memory holds of a step of K: OUTS rows of W and eight rows of x, or several times eight.
template <typename Q, typename T, int OUTS> struct MatrixStep {
  using F = typename Q::template Fragments<T>;
  using Pair = metal::vec<T, 2>;
  FOUNDRY_CONST uint tiles = OUTS / 16, step = matrix_step(Q::block_size), columns = Q::fragment_columns;
  FOUNDRY_CONST uint bytes = step / Q::block_size * sizeof(typename Q::block);
  FOUNDRY_CONST uint stride = matrix_stride(Q::block_size, bytes), x_stride = matrix_x_stride(Q::block_size);
  using Sum = metal::simdgroup_matrix<float, 8, 8>[tiles][2];

  // Adds the products of `period` of a step whose rows of W are at w_rows, each `past` bytes behind a word, and whose
  // `blocks` times eight rows of x, BLOCKS at most, are at x_row, `x_block` bytes from each eight to the next, for this
  // lane; in_pairs: as norm_rows has them. Each group of codes is multiplied before its scale, exactly but for the
  // sums.
  template <int BLOCKS>
  static METAL_FUNC void add_period(threadgroup const uchar* w_rows, thread const uint (&past)[2 * tiles],
                                    threadgroup const uchar* x_row, uint x_block, uint blocks, bool in_pairs,
                                    uint period, uint t, uint base, ushort lane, thread Sum (&sum)[BLOCKS]) {
    F rows[tiles][2];
    for (uint i = 0; i < 2 * tiles; ++i)
      rows[i / 2][i % 2].read((threadgroup const uint*)(w_rows + 8 * i * stride), past[i], period, t);
#pragma unroll
    for (int g = 0; g < F::groups; ++g) {
      Sum products[BLOCKS];
      metal::simdgroup_matrix<float, 8, 8> values[BLOCKS][2];
      for (int b = 0; b < BLOCKS; ++b)
        for (int j = 0; j < 2; ++j) {
          for (uint i = 0; i < tiles; ++i) products[b][i][j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
          if (F::has_offset) values[b][j] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
#pragma unroll
      for (int h = 0; h < columns / F::groups / 16; ++h) {
        const uint column = period * columns + g * (columns / F::groups) + h * 16;
        metal::simdgroup_matrix<T, 8, 8> codes[tiles][2][2], ones[2][2];
        Pair pairs[2];
        for (uint i = 0; i < tiles; ++i)
          for (int j = 0; j < 2; ++j) {
            rows[i][j].codes(g, h, base, pairs);
            for (int f = 0; f < 2; ++f) codes[i][j][f].thread_elements() = pairs[f];
          }
        for (int j = 0; j < 2 && F::has_offset; ++j)
          for (int f = 0; f < 2; ++f) ones[j][f] = metal::make_filled_simdgroup_matrix<T, 8, 8>(T(1.0f));
#pragma unroll
        for (int b = 0; b < BLOCKS; ++b) {
          if (uint(b) >= blocks) continue;
          const metal::uint2 own = *(threadgroup const metal::uint2*)(x_row + b * x_block + column * sizeof(T));
          if (in_pairs)
            for (int f = 0; f < 2; ++f) pairs[f] = as_type<Pair>(own[f]);
          else
            F::pairs(own, pairs);
          metal::simdgroup_matrix<T, 8, 8> x[2];
          for (int f = 0; f < 2; ++f) x[f].thread_elements() = pairs[f];
          for (uint i = 0; i < tiles; ++i) {
            if (F::has_scale)
              multiply_accumulate_2x2_transposed(products[b][i], codes[i], x, lane);
            else
              multiply_accumulate_2x2_transposed(sum[b][i], codes[i], x, lane);
          }
          if (F::has_offset) multiply_accumulate_2x2_transposed(values[b], ones, x, lane);
        }
      }
      for (uint i = 0; i < tiles && F::has_scale; ++i)
        for (int j = 0; j < 2; ++j) {
          const float scale = rows[i][j].scale(g), offset = F::has_offset ? rows[i][j].offset(g) : 0.0f;
          for (int b = 0; b < BLOCKS; ++b)
            for (int e = 0; e < 2; ++e) {
              float total =
                  metal::fma(scale, products[b][i][j].thread_elements()[e], sum[b][i][j].thread_elements()[e]);
              if (F::has_offset) total = metal::fma(offset, values[b][j].thread_elements()[e], total);
              sum[b][i][j].thread_elements()[e] = total;
            }
        }
    }
  }
};

// A simdgroup's copies of rows of W, of which W::row(i) is where row i from W::first on begins.
template <typename Q, typename T, int VEC, int OUTS> struct CopyWeights {
  using Step = MatrixStep<Q, T, OUTS>;
  using Piece = metal::conditional_t<VEC == 16, metal::uint4, metal::uint2>;
  FOUNDRY_CONST uint in_row = Step::bytes / sizeof(Piece), pieces = (OUTS * in_row + simd_width - 1) / simd_width;
  device const uchar* from[pieces]; // the lane's

  template <typename W> METAL_FUNC void find(thread const W& w, ushort lane) thread {
#pragma unroll
    for (uint j = 0; j < pieces; ++j) {
      const uint i = metal::min(j * simd_width + lane, OUTS * in_row - 1);
      from[j] = (device const uchar*)w.row(i / in_row) + i % in_row * sizeof(Piece);
    }
  }

  // The step at `column`, less than k.
  METAL_FUNC void copy(uint column, uint k, threadgroup uchar* to, ushort lane) const thread {
    const uint block = column / Q::block_size;
    const uint there = (k / Q::block_size - block) * uint(sizeof(typename Q::block)) / uint(sizeof(Piece));
    constexpr bool dense = Step::stride == Step::bytes; // rows lie one behind the other
#pragma unroll
    for (uint j = 0; j < pieces; ++j) {
      const uint i = j * simd_width + lane, row = i / in_row, piece = i % in_row;
      if (i < OUTS * in_row && (there >= in_row || piece < there))
        copy_ahead((threadgroup Piece*)(to + (dense ? 0 : row * Step::stride)) + (dense ? i : piece),
                   (device const Piece*)(from[j] + ulong(block) * sizeof(typename Q::block)));
    }
  }
};

// A lane's piece of a row of x, `at` elements behind its first of those that are copied.
template <int VEC, typename T> METAL_FUNC void copy_chunk(device const T* x, threadgroup T* to) {
  if (VEC > 1)
    copy_ahead((threadgroup metal::uint4*)to, (device const metal::uint4*)x);
  else
    for (int j = 0; j < chunk; ++j) to[j] = x[j];
}

// A simdgroup's part of the products with W, and of those of its team that follow, `turn` rows apart, up to W::end.
// Steps of K are copied to threadgroup memory STEPS - 1 ahead, across the team's turns, with their columns of x unless
// all of x is at `whole`.
template <typename Q, typename T, int VEC, int OUTS, int STEPS, typename W> struct MultiplyMatrices {
  using Step = MatrixStep<Q, T, OUTS>;
  using Sum = typename Step::Sum;
  FOUNDRY_CONST uint step = Step::step;

  W w;                    // of the copies: they are ahead
  uint from_column, turn; // of the next copies, and rows between the team's turns
  CopyWeights<Q, T, VEC, OUTS> copies;
  threadgroup uchar* memory; // the simdgroup's: STEPS times `stage` bytes
  threadgroup uchar* now;
  uint stage;

  static METAL_FUNC uint memory_of(bool whole) { return STEPS * matrix_stage(OUTS, Q::block_size, Step::bytes, whole); }

  METAL_FUNC void set(thread const W& first, uint rows_between, bool whole, uint part, threadgroup uchar* own,
                      ushort lane) thread {
    w = first;
    turn = rows_between;
    from_column = part * step;
    now = memory = own;
    stage = memory_of(whole) / STEPS;
    copies.find(w, lane);
  }

  // Copies the next step, unless there is none, to place `slot` from the one in use on.
  METAL_FUNC void fetch(thread const MatrixRows<T>& rows, bool whole, uint part, uint split, uint k, uint slot,
                        ushort lane) thread {
    threadgroup uchar* to = now + slot * stage;
    to = to < memory + STEPS * stage ? to : to - STEPS * stage;
    if (from_column >= k) {
      w.first += turn;
      from_column = part * step;
      if (w.first < w.end) copies.find(w, lane);
    }
    if (w.first < w.end && from_column < k) {
      copies.copy(from_column, k, to, lane);
      const uint at = lane * chunk;
#pragma unroll
      for (uint m = 0; m < matrix_rows; ++m)
        if (!whole && m < rows.count && at < step && from_column + at < k)
          copy_chunk<VEC>(rows.x + rows.row[m] + from_column + at,
                          (threadgroup T*)(to + OUTS * Step::stride + m * Step::x_stride) + at);
    }
    from_column += split * step;
    end_group_of_copies((threadgroup metal::uint4*)to);
  }

  METAL_FUNC void ahead(thread const MatrixRows<T>& rows, bool whole, uint part, uint split, uint k,
                        ushort lane) thread {
    for (uint s = 0; s < STEPS - 1; ++s) fetch(rows, whole, part, split, k, s, lane);
  }

  // Adds the part's products for one turn of the team.
  METAL_FUNC void multiply_part(thread const MatrixRows<T>& rows, bool is_whole, threadgroup const uchar* whole,
                                uint part, uint split, uint k, ushort lane, thread Sum (&sum)[1]) thread {
    const Fragment own = fragment_of(lane);
    const uint t = own.column / 2, m = metal::min(uint(own.row), rows.count - 1);
    const uint base = code_base<T>(k >> 31); // K is less than 2^31
    const uint past[2 * Step::tiles] = {};
    threadgroup const uchar* x_whole = whole + m * matrix_whole_stride(k) + t * 4 * sizeof(T);
    for (uint first = part * step; first < k; first += split * step) {
      wait_for_copies<STEPS - 2>((threadgroup metal::uint4*)memory);
      fetch(rows, is_whole, part, split, k, STEPS - 1, lane);
      threadgroup const uchar* w_rows = now + own.row * Step::stride;
      threadgroup const uchar* x_row =
          is_whole ? x_whole + first * sizeof(T) : now + OUTS * Step::stride + m * Step::x_stride + t * 4 * sizeof(T);
#pragma unroll
      for (uint period = 0; period < step / Step::columns; ++period)
        if (first + period * Step::columns < k)
          Step::template add_period<1>(w_rows, past, x_row, 0, 1, is_whole, period, t, base, lane, sum);
      now = now + stage < memory + STEPS * stage ? now + stage : memory;
    }
  }
};

// The sums of a team, of which its threads take some each: row i / OUTS of x, output i % OUTS.
template <int OUTS> struct MatrixSums {
  threadgroup const float* partial; // of the team's parts, one after the other
  uint first, step;                 // of those that this thread takes
  uint count;                       // of whole simdgroups, as pairs of lanes exchange theirs
  uint split;
  FOUNDRY_CONST uint most = matrix_rows * OUTS;

  METAL_FUNC bool has(uint) const { return true; }
  METAL_FUNC float operator[](uint i) const {
    float total = partial[i];
#pragma unroll 4
    for (uint p = 1; p < split; ++p) total += partial[p * most + i];
    return total;
  }
};

} // namespace foundry
