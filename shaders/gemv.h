// The inner product of kernels that multiply few rows of x with a weight: a team of simdgroups makes neighbouring
// outputs of a row of x, its lanes walk K a chunk each.
#pragma once
#include "loader.h"

namespace foundry {

// The sum of w[j] * x[j] by P chains of fma: one is the fewest instructions, four are what a CPU makes vectors of.
template <int P> METAL_FUNC float dot(thread const float (&w)[chunk], thread const float (&x)[chunk]) {
  static_assert(P == 4 && chunk == 8, "two links a chain");
  float s[4];
  for (int j = 0; j < 4; ++j) s[j] = metal::fma(w[j + 4], x[j + 4], w[j] * x[j]);
  return (s[0] + s[1]) + (s[2] + s[3]);
}

template <> METAL_FUNC float dot<1>(thread const float (&w)[chunk], thread const float (&x)[chunk]) {
  float s = w[0] * x[0];
  for (int j = 1; j < chunk; ++j) s = metal::fma(w[j], x[j], s);
  return s;
}

// What W is multiplied with. Plain: rows of x as they are.
template <typename T, int V> struct Plain {
  device const T* x;
  METAL_FUNC void load(uint row, uint k, uint end, thread float (&v)[chunk], thread float&) const {
    load_chunk<Dense<T>, V>(x + row, k, end, v);
  }
};

// Weighted: rows of x times the gains of an RMSNorm. W (r * g * x) = r * (W (g * x)), so the norm needs no pass of its
// own: the squares, of which 1 / r is the root mean, are summed beside the products. `offset`: 1 for gains of 1 + g.
template <typename T, int V, int P> struct Weighted {
  device const T* x;
  device const T* gain;
  float offset;
  METAL_FUNC void load(uint row, uint k, uint end, thread float (&v)[chunk], thread float& squares) const {
    float g[chunk];
    load_chunk<Dense<T>, V>(x + row, k, end, v);
    load_chunk<Dense<T>, V>(gain, k, end, g);
    squares += dot<P>(v, v);
    for (int j = 0; j < chunk; ++j) v[j] *= offset + g[j];
  }
};

// Adds the products of U steps of K to the sums of M rows and N outputs. All loads of W stand before the first use, so
// that they are in flight together. Explicit fma, and one order for every M, N, U and V.
template <typename Q, int M, int V, int N, int U, int P, typename X>
METAL_FUNC void accumulate(device const typename Q::block* thread (&w_row)[N], thread const X& x,
                           thread const uint (&x_row)[M], uint k, uint step, uint end, thread float (&sum)[M * N],
                           thread float (&squares)[M]) {
  constexpr int C = Unit<Q>::chunks;
  float w[U][N][C][chunk], d[U][N];
  for (int u = 0; u < U; ++u)
    for (int n = 0; n < N; ++n)
      for (int c = 0; c < C; ++c) d[u][n] = Loader<Q, V>::load(w_row[n], k + u * step, c, end, w[u][n][c]);
  for (int u = 0; u < U; ++u) {
    for (int m = 0; m < M; ++m) {
      float v[C][chunk];
      for (int c = 0; c < C; ++c) x.load(x_row[m], k + u * step + c * Unit<Q>::gap, end, v[c], squares[m]);
      for (int n = 0; n < N; ++n) {
        float products = dot<P>(w[u][n][0], v[0]);
        for (int c = 1; c < C; ++c) products += dot<P>(w[u][n][c], v[c]);
        sum[m * N + n] = metal::fma(d[u][n], products, sum[m * N + n]);
      }
    }
  }
}

// The chunks of a row of x that go with a unit of W.
template <typename Q> struct Values {
  float v[Unit<Q>::chunks][chunk];
  template <typename X>
  METAL_FUNC void load(thread const X& x, uint row, uint k, uint end, thread float& squares) thread {
    for (int c = 0; c < int(Unit<Q>::chunks); ++c) x.load(row, k + c * Unit<Q>::gap, end, v[c], squares);
  }
};

// A unit of W as codes, which the block's scale multiplies once.
template <typename Q> struct Weights {
  float w[Unit<Q>::chunks][chunk], d;
  template <typename Raw> METAL_FUNC void unpack(thread const Raw& raw, uint block, uint base) thread {
    for (int c = 0; c < int(Unit<Q>::chunks); ++c) Q::codes(raw.bytes(block), base, c, w[c]);
    d = widen(raw.d);
  }
  METAL_FUNC float add_products(thread const Values<Q>& x, float sum) const thread {
    float products = dot<1>(w[0], x.v[0]);
    for (int c = 1; c < int(Unit<Q>::chunks); ++c) products = metal::fma(Q::ratio(c), dot<1>(w[c], x.v[c]), products);
    return metal::fma(d, products, sum);
  }
};

// Adds the products of the step of K that `raw` holds. As soon as a row's codes are unpacked, those of the step at
// `next` are read in their place, unless that is behind `end`.
template <typename Q, int M, int N, typename Raw, typename X>
METAL_FUNC void accumulate_codes(thread Raw (&raw)[N], device const typename Q::block* thread (&w_row)[N],
                                 thread const X& x, thread const uint (&x_row)[M], uint k, uint next, uint end,
                                 thread float (&sum)[M * N], thread float (&squares)[M]) {
  constexpr bool rows_first = M > 2; // more rows of x than registers
  // Two halves of 1024. K is less than 2^31, but as a constant they would cost an instruction beside that of the mask.
  const uint base = 0x64006400u | (rows_first ? 0 : end >> 31);
  Values<Q> v[M];
  Weights<Q> w[N];
  for (int m = 0; m < M && !rows_first; ++m) v[m].load(x, x_row[m], k, end, squares[m]);
  for (int n = 0; n < N; ++n) {
    w[n].unpack(raw[n], k / Q::block_size, base);
    if (next < end) raw[n].read(w_row[n], next);
    for (int m = 0; m < M && !rows_first; ++m) sum[m * N + n] = w[n].add_products(v[m], sum[m * N + n]);
  }
  for (int m = 0; m < M && rows_first; ++m) {
    v[m].load(x, x_row[m], k, end, squares[m]);
    for (int n = 0; n < N; ++n) sum[m * N + n] = w[n].add_products(v[m], sum[m * N + n]);
  }
}

// See `walk`. By floats, and by codes, where one step in flight means that it is read while the step before it is used.
template <int P, bool ByCodes> struct Walk {
  template <typename Q, int M, int V, int N, int U, typename X>
  static METAL_FUNC void run(device const typename Q::block* thread (&w_row)[N], thread const X& x,
                             thread const uint (&x_row)[M], uint k, uint step, uint end, thread float (&sum)[M * N],
                             thread float (&squares)[M]) {
    for (; k + (U - 1) * step < end; k += U * step)
      accumulate<Q, M, V, N, U, P>(w_row, x, x_row, k, step, end, sum, squares);
    for (; U > 1 && k < end; k += step) accumulate<Q, M, V, N, 1, P>(w_row, x, x_row, k, step, end, sum, squares);
  }
};

template <> struct Walk<1, true> {
  template <typename Q, int M, int V, int N, int U, typename X>
  static METAL_FUNC void run(device const typename Q::block* thread (&w_row)[N], thread const X& x,
                             thread const uint (&x_row)[M], uint k, uint step, uint end, thread float (&sum)[M * N],
                             thread float (&squares)[M]) {
    Codes<Q, V == 16 && Q::by_words> raw[U][N];
    for (; U > 1 && k + (U - 1) * step < end; k += U * step) {
      for (int u = 0; u < U; ++u)
        for (int n = 0; n < N; ++n) raw[u][n].read(w_row[n], k + u * step);
      for (int u = 0; u < U; ++u)
        accumulate_codes<Q, M, N>(raw[u], w_row, x, x_row, k + u * step, end, end, sum, squares);
    }
    for (int n = 0; n < N && k < end; ++n) raw[0][n].read(w_row[n], k);
    for (; k < end; k += step) accumulate_codes<Q, M, N>(raw[0], w_row, x, x_row, k, k + step, end, sum, squares);
  }
};

// The part of a team's products and squares that falls to this lane: the chunks `unit`, `unit` + 32 * split and so on,
// U at a time. A chunk's lane depends on k and the split alone, so M, N, U and V do not change a bit of the result. V
// is 1, 8 where rows of x, and of a dense W, are aligned to 16 bytes, or 16 where pairs of W's blocks are to 4 besides.
template <typename Q, int M, int V, int N, int U, int P, typename X>
METAL_FUNC void walk(device const typename Q::block* thread (&w_row)[N], thread const X& x,
                     thread const uint (&x_row)[M], uint unit, uint split, uint end, thread float (&sum)[M * N],
                     thread float (&squares)[M]) {
  for (int i = 0; i < M * N; ++i) sum[i] = 0.0f;
  for (int m = 0; m < M; ++m) squares[m] = 0.0f;
  using Way = Walk<P, Q::has_codes>;
  const uint step = split * simd_width * Unit<Q>::elements;
  Way::template run<Q, M, V, N, U>(w_row, x, x_row, Unit<Q>::first(unit), step, end, sum, squares);
}

// The sums over the simdgroup of C values; lane i gets that of value i.
template <int C> METAL_FUNC float simd_sums(thread const float (&v)[C], ushort lane) {
  static_assert(C <= simd_width, "a lane for each value");
  float mine = 0.0f;
  if (C % 4 == 0) {
    for (int i = 0; i + 3 < C; i += 4) {
      const metal::float4 total = metal::simd_sum(metal::float4(v[i], v[i + 1], v[i + 2], v[i + 3]));
      mine = lane == i ? total.x : lane == i + 1 ? total.y : lane == i + 2 ? total.z : lane == i + 3 ? total.w : mine;
    }
  } else {
    for (int i = 0; i < C; ++i) {
      const float total = metal::simd_sum(v[i]);
      mine = lane == i ? total : mine;
    }
  }
  return mine;
}

// The sums of C values over a team; lane i of its first simdgroup gets that of value i. The parts are added in the
// order of K. `partial`: C floats a simdgroup. All threads must call this.
template <int C>
METAL_FUNC float team_sums(thread const float (&v)[C], uint split, uint part, threadgroup float* partial,
                           ushort simdgroup, ushort lane) {
  float total = simd_sums(v, lane);
  if (split > 1) { // uniform
    if (lane < C) partial[simdgroup * C + lane] = total;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (part == 0 && lane < C) {
      for (uint p = 1; p < split; ++p) total += partial[(simdgroup + p) * C + lane];
    }
  }
  return total;
}

} // namespace foundry
