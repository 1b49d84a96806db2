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

// Those of a chunk of codes, of which a group may have several.
METAL_FUNC void add_products(thread const float (&w)[chunk], thread const float (&x)[chunk], float ratio, bool first,
                             thread float& sum) {
  sum = first ? ratio * dot<1>(w, x) : metal::fma(ratio, dot<1>(w, x), sum);
}

METAL_FUNC void add_values(thread const float (&x)[chunk], bool first, thread float& sum) {
  const float all = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
  sum = first ? all : sum + all;
}

// What W is multiplied with. Plain: rows of x as they are.
template <typename T, int V> struct Plain {
  using type = T;
  device const T* x;
  METAL_FUNC void load(uint row, uint k, uint end, thread float (&v)[chunk], thread float&) const {
    load_chunk<Dense<T>, V>(x + row, k, end, v);
  }
};

// Weighted: rows of x times the gains of an RMSNorm. W (r * g * x) = r * (W (g * x)), so the norm needs no pass of its
// own: the squares, of which 1 / r is the root mean, are summed beside the products. `offset`: 1 for gains of 1 + g.
template <typename T, int V, int P> struct Weighted {
  using type = T;
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

// Adds the products of the step of K that `raw` holds to the sums. A group's codes are multiplied first, then their sum
// by its scale; its offset multiplies the sum of its x. As soon as a row's codes are unpacked, those of
// `block` are read in their place, if there are more.
template <typename Q, int M, int N, typename Codes, typename X>
METAL_FUNC void accumulate_codes(thread Codes (&raw)[N], device const typename Q::block* thread (&block)[N], bool more,
                                 thread const X& x, thread const uint (&x_row)[M], uint first, uint k, uint end,
                                 thread float (&sum)[M * N], thread float (&squares)[M]) {
  constexpr int C = Codes::chunks, G = Codes::groups, in_group = C / G;
  // Two halves of 1024. K is less than 2^31, but as a constant they would cost an instruction beside that of the mask.
  const uint base = 0x64006400u | end >> 31;
  if (M <= 2) { // x stays in registers
    float v[M][C][chunk], total[M][G];
    for (int m = 0; m < M; ++m)
#pragma unroll
      for (int c = 0; c < C; ++c) {
        x.load(x_row[m], k + Codes::at(c), end, v[m][c], squares[m]);
        if (Codes::has_offset) add_values(v[m][c], c % in_group == 0, total[m][c / in_group]);
      }
#pragma unroll
    for (int n = 0; n < N; ++n) {
      float w[C][chunk], d[G], offset[G];
#pragma unroll
      for (int c = 0; c < C; ++c) raw[n].codes(first, c, base, w[c]);
#pragma unroll
      for (int g = 0; g < G; ++g) d[g] = raw[n].scale(first, g), offset[g] = raw[n].offset(first, g);
      if (more) raw[n].read(*block[n], first);
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int g = 0; g < G; ++g) {
          float products = 0.0f;
#pragma unroll
          for (int c = g * in_group; c < (g + 1) * in_group; ++c)
            add_products(w[c], v[m][c], Codes::ratio(c), c % in_group == 0, products);
          sum[m * N + n] = metal::fma(d[g], products, sum[m * N + n]);
          if (Codes::has_offset) sum[m * N + n] = metal::fma(offset[g], total[m][g], sum[m * N + n]);
        }
    }
  } else { // a chunk of W does
#pragma unroll
    for (int g = 0; g < G; ++g) {
      float products[M * N], total[M], d[N], offset[N];
#pragma unroll
      for (int n = 0; n < N; ++n) d[n] = raw[n].scale(first, g), offset[n] = raw[n].offset(first, g);
#pragma unroll
      for (int c = g * in_group; c < (g + 1) * in_group; ++c) {
        float w[N][chunk];
#pragma unroll
        for (int n = 0; n < N; ++n) {
          raw[n].codes(first, c, base, w[n]);
          if (c == C - 1 && more) raw[n].read(*block[n], first);
        }
        for (int m = 0; m < M; ++m) {
          float v[chunk];
          x.load(x_row[m], k + Codes::at(c), end, v, squares[m]);
          if (Codes::has_offset) add_values(v, c % in_group == 0, total[m]);
#pragma unroll
          for (int n = 0; n < N; ++n) add_products(w[n], v, Codes::ratio(c), c % in_group == 0, products[m * N + n]);
        }
      }
      for (int m = 0; m < M; ++m)
#pragma unroll
        for (int n = 0; n < N; ++n) {
          sum[m * N + n] = metal::fma(d[n], products[m * N + n], sum[m * N + n]);
          if (Codes::has_offset) sum[m * N + n] = metal::fma(offset[n], total[m], sum[m * N + n]);
        }
    }
  }
}

// Whether codes are multiplied before they are weights. A sum of large products that a large offset takes back has
// errors that show in f32: there, rows of x are multiplied by finished weights.
template <typename Q, typename T, bool HasCodes> struct ByCodes {
  FOUNDRY_CONST bool value = false;
};
template <typename Q, typename T> struct ByCodes<Q, T, true> {
  FOUNDRY_CONST bool value = !(Q::template Codes<false>::has_offset && metal::is_same_v<T, float>);
};

// See `walk`. By floats, and by codes, where one step in flight means that it is read while the step before it is used.
template <typename Q, bool InCodes> struct Walk {
  template <int M, int V, int N, int U, int P, typename X>
  static METAL_FUNC void run(device const typename Q::block* thread (&w_row)[N], thread const X& x,
                             thread const uint (&x_row)[M], uint unit, uint split, uint end, thread float (&sum)[M * N],
                             thread float (&squares)[M]) {
    const uint step = split * simd_width * Unit<Q>::elements;
    uint k = Unit<Q>::first(unit);
    for (; k + (U - 1) * step < end; k += U * step)
      accumulate<Q, M, V, N, U, P>(w_row, x, x_row, k, step, end, sum, squares);
    for (; U > 1 && k < end; k += step) accumulate<Q, M, V, N, 1, P>(w_row, x, x_row, k, step, end, sum, squares);
  }
};

template <typename Q> struct Walk<Q, true> {
  template <int M, int V, int N, int U, int P, typename X>
  static METAL_FUNC void run(device const typename Q::block* thread (&w_row)[N], thread const X& x,
                             thread const uint (&x_row)[M], uint unit, uint split, uint end, thread float (&sum)[M * N],
                             thread float (&squares)[M]) {
    using Codes = typename Q::template Codes<V == 16>;
    const uint step = split * simd_width * Codes::chunks * chunk, blocks = step / Q::block_size;
    const uint first = Codes::first(unit);
    device const typename Q::block* block[N];
    for (int n = 0; n < N; ++n) block[n] = w_row[n] + first / Q::block_size;
    Codes raw[U][N];
    uint k = first;
    for (; U > 1 && k + (U - 1) * step < end; k += U * step) {
#pragma unroll
      for (int u = 0; u < U; ++u)
#pragma unroll
        for (int n = 0; n < N; ++n) raw[u][n].read(block[n][u * blocks], first);
      for (int n = 0; n < N; ++n) block[n] += U * blocks;
#pragma unroll
      for (int u = 0; u < U; ++u)
        accumulate_codes<Q, M, N>(raw[u], block, false, x, x_row, first, k + u * step, end, sum, squares);
    }
    for (int n = 0; n < N && k < end; ++n) raw[0][n].read(*block[n], first);
    for (; k < end; k += step) {
      for (int n = 0; n < N; ++n) block[n] += blocks;
      accumulate_codes<Q, M, N>(raw[0], block, k + step < end, x, x_row, first, k, end, sum, squares);
    }
  }
};

// The part of a team's products and squares that falls to this lane: the chunks `unit`, `unit` + 32 * split and so on,
// U at a time. A chunk's lane depends on k and the split alone, so M, N, U and V do not change a bit of the result. V
// is 1, 8 where rows of x, and of a dense W, are aligned to 16 bytes, or 16 where W's rows are to Q::word besides.
template <typename Q, int M, int V, int N, int U, int P, typename X>
METAL_FUNC void walk(device const typename Q::block* thread (&w_row)[N], thread const X& x,
                     thread const uint (&x_row)[M], uint unit, uint split, uint end, thread float (&sum)[M * N],
                     thread float (&squares)[M]) {
  for (int i = 0; i < M * N; ++i) sum[i] = 0.0f;
  for (int m = 0; m < M; ++m) squares[m] = 0.0f;
  Walk<Q, P == 1 && ByCodes<Q, typename X::type, Q::has_codes>::value>::template run<M, V, N, U, P>(
      w_row, x, x_row, unit, split, end, sum, squares);
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
