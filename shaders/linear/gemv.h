// The inner product of kernels that multiply few rows of x with a weight: a team of simdgroups makes neighbouring
// outputs of a row of x, its lanes walk K a chunk each.
#pragma once
#include "linear/loader.h"

namespace foundry {

// The sum of w[j] * x[j] by CHAINS chains of fma: one is the fewest instructions, four are what a CPU makes vectors of.
template <int CHAINS> METAL_FUNC float dot(thread const float (&w)[chunk], thread const float (&x)[chunk]) {
  static_assert(CHAINS == 1 || CHAINS == by_subnormals, "one chain");
  float s = w[0] * x[0];
  for (int j = 1; j < chunk; ++j) s = metal::fma(w[j], x[j], s);
  return s;
}

template <> METAL_FUNC float dot<4>(thread const float (&w)[chunk], thread const float (&x)[chunk]) {
  static_assert(chunk == 8, "two links a chain");
  float s[4];
  for (int j = 0; j < 4; ++j) s[j] = metal::fma(w[j + 4], x[j + 4], w[j] * x[j]);
  return (s[0] + s[1]) + (s[2] + s[3]);
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

// What W is multiplied with. PlainRows: rows of x as they are.
template <typename T, int VEC> struct PlainRows {
  using type = T;
  device const T* x;
  METAL_FUNC void load(uint row, uint k, uint end, thread float (&v)[chunk], thread float&) const {
    load_chunk<Dense<T>, VEC>(x + row, k, end, v);
  }
};

// NormedRows: rows of x times the weight of an RMSNorm. W (r * g * x) = r * (W (g * x)), so the norm needs no pass of
// its own: the squares, of which 1 / r is the root mean, are summed beside the products. `offset`: 1 if g is 1 +
// weight. `normed`, a constant: false for rows of x as they are.
template <typename T, int VEC, int CHAINS> struct NormedRows {
  using type = T;
  device const T* x;
  device const T* norm_weight;
  float offset;
  bool normed;
  METAL_FUNC void load(uint row, uint k, uint end, thread float (&v)[chunk], thread float& squares) const {
    float g[chunk];
    load_chunk<Dense<T>, VEC>(x + row, k, end, v);
    if (!normed) return;
    load_chunk<Dense<T>, VEC>(norm_weight, k, end, g);
    squares += dot<CHAINS>(v, v);
    for (int j = 0; j < chunk; ++j) v[j] *= offset + g[j];
  }
};

// Adds the products of UNROLL steps of K to the sums of ROWS rows and OUTS outputs. All loads of W stand before the
// first use, so that they are in flight together. Explicit fma, and one order for every ROWS, OUTS, UNROLL and VEC.
template <typename Q, int ROWS, int VEC, int OUTS, int UNROLL, int CHAINS, typename XRows>
METAL_FUNC void accumulate(device const typename Q::block* thread (&w_row)[OUTS], thread const XRows& x,
                           thread const uint (&x_row)[ROWS], uint k, uint step, uint end,
                           thread float (&sum)[ROWS * OUTS], thread float (&squares)[ROWS]) {
  constexpr int C = Unit<Q>::chunks;
  float w[UNROLL][OUTS][C][chunk], d[UNROLL][OUTS];
  for (int u = 0; u < UNROLL; ++u)
    for (int n = 0; n < OUTS; ++n)
      for (int c = 0; c < C; ++c) d[u][n] = Loader<Q, VEC>::load(w_row[n], k + u * step, c, end, w[u][n][c]);
  for (int u = 0; u < UNROLL; ++u) {
#pragma unroll
    for (int m = 0; m < ROWS; ++m) {
      float v[C][chunk];
      for (int c = 0; c < C; ++c) x.load(x_row[m], k + u * step + c * Unit<Q>::gap, end, v[c], squares[m]);
      for (int n = 0; n < OUTS; ++n) {
        float products = dot<CHAINS>(w[u][n][0], v[0]);
        for (int c = 1; c < C; ++c) products += dot<CHAINS>(w[u][n][c], v[c]);
        sum[m * OUTS + n] = metal::fma(d[u][n], products, sum[m * OUTS + n]);
      }
    }
  }
}

// Adds the products of the step of K that `raw` holds to the sums. A group's codes are multiplied first, then their sum
// by its scale; its offset multiplies the sum of its x. As soon as a row's codes are unpacked, those of
// `block` are read in their place, if there are more. SUBNORMAL: sums, and so offsets, are over 2^24.
template <typename Q, int ROWS, int OUTS, bool SUBNORMAL, typename Codes, typename XRows>
METAL_FUNC void accumulate_codes(thread Codes (&raw)[OUTS], device const typename Q::block* thread (&block)[OUTS],
                                 bool more, thread const XRows& x, thread const uint (&x_row)[ROWS], uint first, uint k,
                                 uint end, thread float (&sum)[ROWS * OUTS], thread float (&squares)[ROWS]) {
  constexpr int C = Codes::chunks, G = Codes::groups, in_group = C / G;
  // Two halves of 1024. K is less than 2^31, but as a constant they would cost an instruction beside that of the mask.
  const uint base = SUBNORMAL ? 0 : 0x64006400u | end >> 31;
  constexpr float unit = SUBNORMAL ? 0x1p-24f : 1.0f;
  if (ROWS <= 2) { // x stays in registers
    float v[ROWS][C][chunk], total[ROWS][G];
#pragma unroll
    for (int m = 0; m < ROWS; ++m)
#pragma unroll
      for (int c = 0; c < C; ++c) {
        x.load(x_row[m], k + Codes::at(c), end, v[m][c], squares[m]);
        if (Codes::has_offset) add_values(v[m][c], c % in_group == 0, total[m][c / in_group]);
      }
#pragma unroll
    for (int n = 0; n < OUTS; ++n) {
      float w[C][chunk], d[G], offset[G];
#pragma unroll
      for (int c = 0; c < C; ++c) raw[n].codes(first, c, base, w[c]);
#pragma unroll
      for (int g = 0; g < G; ++g) d[g] = raw[n].scale(first, g), offset[g] = raw[n].offset(first, g) * unit;
      if (more) raw[n].read(*block[n], first);
#pragma unroll
      for (int m = 0; m < ROWS; ++m)
#pragma unroll
        for (int g = 0; g < G; ++g) {
          float products = 0.0f;
#pragma unroll
          for (int c = g * in_group; c < (g + 1) * in_group; ++c)
            add_products(w[c], v[m][c], Codes::ratio(c), c % in_group == 0, products);
          sum[m * OUTS + n] = metal::fma(d[g], products, sum[m * OUTS + n]);
          if (Codes::has_offset) sum[m * OUTS + n] = metal::fma(offset[g], total[m][g], sum[m * OUTS + n]);
        }
    }
  } else { // a chunk of W does
#pragma unroll
    for (int g = 0; g < G; ++g) {
      float products[ROWS * OUTS], total[ROWS], d[OUTS], offset[OUTS];
#pragma unroll
      for (int n = 0; n < OUTS; ++n) d[n] = raw[n].scale(first, g), offset[n] = raw[n].offset(first, g) * unit;
#pragma unroll
      for (int c = g * in_group; c < (g + 1) * in_group; ++c) {
        float w[OUTS][chunk];
#pragma unroll
        for (int n = 0; n < OUTS; ++n) {
          raw[n].codes(first, c, base, w[n]);
          if (c == C - 1 && more) raw[n].read(*block[n], first);
        }
        for (int m = 0; m < ROWS; ++m) {
          float v[chunk];
          x.load(x_row[m], k + Codes::at(c), end, v, squares[m]);
          if (Codes::has_offset) add_values(v, c % in_group == 0, total[m]);
#pragma unroll
          for (int n = 0; n < OUTS; ++n)
            add_products(w[n], v, Codes::ratio(c), c % in_group == 0, products[m * OUTS + n]);
        }
      }
      for (int m = 0; m < ROWS; ++m)
#pragma unroll
        for (int n = 0; n < OUTS; ++n) {
          sum[m * OUTS + n] = metal::fma(d[n], products[m * OUTS + n], sum[m * OUTS + n]);
          if (Codes::has_offset) sum[m * OUTS + n] = metal::fma(offset[n], total[m], sum[m * OUTS + n]);
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

// See `accumulate_k`. By floats, and by codes, where one step in flight means that it is read while the step before it
// is used, and none that it is read when it is used: where rows are aligned to single words only, in halves of them, of
// which Apple's GPUs load eight at once from wherever they lie. Codes that are subnormal halves are code / 2^24: no
// exponent is to be set, and without a zero none to be taken off. All that changes is a power of two, so they give the
// bits of the others.
template <typename Q, bool InCodes> struct AccumulateK {
  template <int ROWS, int VEC, int OUTS, int UNROLL, int CHAINS, typename XRows>
  static METAL_FUNC void run(device const typename Q::block* thread (&w_row)[OUTS], thread const XRows& x,
                             thread const uint (&x_row)[ROWS], uint unit, uint split, uint end,
                             thread float (&sum)[ROWS * OUTS], thread float (&squares)[ROWS]) {
    const uint step = split * simd_width * Unit<Q>::elements;
    uint k = Unit<Q>::first(unit);
    for (; k + (UNROLL - 1) * step < end; k += UNROLL * step)
      accumulate<Q, ROWS, VEC, OUTS, UNROLL, CHAINS>(w_row, x, x_row, k, step, end, sum, squares);
    for (; UNROLL > 1 && k < end; k += step)
      accumulate<Q, ROWS, VEC, OUTS, 1, CHAINS>(w_row, x, x_row, k, step, end, sum, squares);
  }
};

template <typename Q> struct AccumulateK<Q, true> {
  template <int ROWS, int VEC, int OUTS, int UNROLL, int CHAINS, typename XRows>
  static METAL_FUNC void run(device const typename Q::block* thread (&w_row)[OUTS], thread const XRows& x,
                             thread const uint (&x_row)[ROWS], uint unit, uint split, uint end,
                             thread float (&sum)[ROWS * OUTS], thread float (&squares)[ROWS]) {
    constexpr bool ahead = UNROLL > 0, subnormal = CHAINS == by_subnormals;
    using Codes = typename Q::template Codes<VEC == 16 && (ahead || Q::word > 4)>;
    const uint step = split * simd_width * Codes::chunks * chunk;
    const metal::uint2 own = kept(metal::uint2(Codes::first(unit), step / Q::block_size), sizeof(typename Q::block));
    const uint first = own.x, blocks = step / Q::block_size;
    device const typename Q::block* block[OUTS];
    for (int n = 0; n < OUTS; ++n) block[n] = w_row[n] + first / Q::block_size;
    Codes raw[ahead ? UNROLL : 1][OUTS];
    uint k = first;
    for (; UNROLL > 1 && k + (UNROLL - 1) * step < end; k += UNROLL * step) {
#pragma unroll
      for (int u = 0; u < UNROLL; ++u)
#pragma unroll
        for (int n = 0; n < OUTS; ++n) raw[u][n].read(block[n][u * blocks], first);
      for (int n = 0; n < OUTS; ++n) block[n] += UNROLL * blocks;
#pragma unroll
      for (int u = 0; u < UNROLL; ++u)
        accumulate_codes<Q, ROWS, OUTS, subnormal>(raw[u], block, false, x, x_row, first, k + u * step, end, sum,
                                                   squares);
    }
    for (int n = 0; ahead && n < OUTS && k < end; ++n) raw[0][n].read(*block[n], first);
    for (; k < end; k += step) {
#pragma unroll
      for (int n = 0; n < OUTS && !ahead; ++n) raw[0][n].read(*block[n], first);
      for (int n = 0; n < OUTS; ++n) block[n] = next_unit(block[n], own);
      accumulate_codes<Q, ROWS, OUTS, subnormal>(raw[0], block, ahead && k + step < end, x, x_row, first, k, end, sum,
                                                 squares);
    }
    for (int i = 0; subnormal && i < ROWS * OUTS; ++i) sum[i] *= 0x1p24f;
  }
};

// The part of a team's products and squares that falls to this lane: the chunks `unit`, `unit` + 32 * split and so on,
// UNROLL at a time. A chunk's lane depends on k and the split alone, so ROWS, OUTS, UNROLL and VEC do not change a bit
// of the result. VEC is 1, 8 where rows of x, and of a dense W, are aligned to 16 bytes, or 16 where W's rows are to
// Q::word besides.
template <typename Q, int ROWS, int VEC, int OUTS, int UNROLL, int CHAINS, typename XRows>
METAL_FUNC void accumulate_k(device const typename Q::block* thread (&w_row)[OUTS], thread const XRows& x,
                             thread const uint (&x_row)[ROWS], uint unit, uint split, uint end,
                             thread float (&sum)[ROWS * OUTS], thread float (&squares)[ROWS]) {
  for (int i = 0; i < ROWS * OUTS; ++i) sum[i] = 0.0f;
  for (int m = 0; m < ROWS; ++m) squares[m] = 0.0f;
  constexpr bool in_codes = CHAINS != 4 && ByCodes<Q, typename XRows::type, Q::has_codes>::value;
  constexpr int in_flight = in_codes || UNROLL > 0 ? UNROLL : 1;
  AccumulateK<Q, in_codes>::template run<ROWS, VEC, OUTS, in_flight, CHAINS>(w_row, x, x_row, unit, split, end, sum,
                                                                             squares);
}

// The sums over the simdgroup of COUNT values; lane i gets that of value i.
template <int COUNT> METAL_FUNC float simd_sums(thread const float (&v)[COUNT], ushort lane) {
  static_assert(COUNT <= simd_width, "a lane for each value");
  float mine = 0.0f;
  if (COUNT % 4 == 0) {
    for (int i = 0; i + 3 < COUNT; i += 4) {
      const metal::float4 total = metal::simd_sum(metal::float4(v[i], v[i + 1], v[i + 2], v[i + 3]));
      mine = lane == i ? total.x : lane == i + 1 ? total.y : lane == i + 2 ? total.z : lane == i + 3 ? total.w : mine;
    }
  } else {
    for (int i = 0; i < COUNT; ++i) {
      const float total = metal::simd_sum(v[i]);
      mine = lane == i ? total : mine;
    }
  }
  return mine;
}

// The sums of COUNT values over a team; lane i of its first simdgroup gets that of value i. The parts are added in the
// order of K. `partial`: COUNT floats a simdgroup. All threads must call this.
template <int COUNT>
METAL_FUNC float team_sums(thread const float (&v)[COUNT], uint split, uint part, threadgroup float* partial,
                           ushort simdgroup, ushort lane) {
  float total = simd_sums(v, lane);
  if (split > 1) { // uniform
    if (lane < COUNT) partial[simdgroup * COUNT + lane] = total;
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    if (part == 0 && lane < COUNT) {
      for (uint p = 1; p < split; ++p) total += partial[(simdgroup + p) * COUNT + lane];
    }
  }
  return total;
}

} // namespace foundry
