// Reading and writing V neighbouring elements as floats. V is 8 or 4 when the host proved that every address is aligned
// to 16 bytes or to four elements, else 1: a misaligned vector access is undefined on the GPU.
#pragma once
#include "common/portable.h"

namespace foundry {

template <typename T> METAL_FUNC void load(device const T* p, thread float (&v)[1]) { v[0] = float(p[0]); }

template <typename T> METAL_FUNC void load(device const T* p, thread float (&v)[4]) {
  const metal::vec<T, 4> x = *(device const metal::vec<T, 4>*)p;
  v[0] = float(x[0]);
  v[1] = float(x[1]);
  v[2] = float(x[2]);
  v[3] = float(x[3]);
}

// Eight elements of 16 bits as they are: one load if VEC is 8 or more, which is for addresses aligned to 16 bytes.
template <int VEC, typename T> METAL_FUNC void load_elements(device const T* p, thread T (&v)[8]) {
  if (VEC >= 8) {
    const metal::uint4 raw = *(device const metal::uint4*)p;
    for (int i = 0; i < 4; ++i) {
      const metal::vec<T, 2> pair = as_type<metal::vec<T, 2>>(raw[i]);
      v[2 * i] = pair.x;
      v[2 * i + 1] = pair.y;
    }
  } else {
    for (int i = 0; i < 8; ++i) v[i] = p[i];
  }
}

template <typename T> METAL_FUNC void store(device T* p, thread const float (&v)[1]) { p[0] = T(v[0]); }

template <typename T> METAL_FUNC void store(device T* p, thread const float (&v)[4]) {
  *(device metal::vec<T, 4>*)p = metal::vec<T, 4>(T(v[0]), T(v[1]), T(v[2]), T(v[3]));
}

// Eight elements from an address aligned to 16 bytes, in as few loads as that allows.
METAL_FUNC void load(device const float* p, thread float (&v)[8]) {
  float lo[4], hi[4];
  load(p, lo);
  load(p + 4, hi);
  for (int j = 0; j < 4; ++j) {
    v[j] = lo[j];
    v[j + 4] = hi[j];
  }
}

METAL_FUNC void load(device const half* p, thread float (&v)[8]) {
  const metal::uint4 raw = *(device const metal::uint4*)p;
  for (int i = 0; i < 4; ++i) {
    const metal::half2 x = as_type<metal::half2>(raw[i]);
    v[2 * i] = float(x.x);
    v[2 * i + 1] = float(x.y);
  }
}

METAL_FUNC void load(device const bfloat* p, thread float (&v)[8]) { // a bfloat is the upper half of a float
  const metal::uint4 raw = *(device const metal::uint4*)p;
  for (int i = 0; i < 4; ++i) {
    v[2 * i] = as_type<float>(raw[i] << 16);
    v[2 * i + 1] = as_type<float>(raw[i] & 0xffff0000u);
  }
}

// 16 bytes at an address aligned to them. CUDA's prelude overloads this: an assignment is four writes there.
template <typename V> METAL_FUNC void write_whole(device V* p, V v) { *p = v; }

METAL_FUNC void store(device float* p, thread const float (&v)[8]) {
  for (int i = 0; i < 2; ++i) {
    metal::uint4 raw;
    for (int j = 0; j < 4; ++j) raw[j] = as_type<uint>(v[4 * i + j]);
    write_whole((device metal::uint4*)p + i, raw);
  }
}

METAL_FUNC void store(device half* p, thread const float (&v)[8]) {
  metal::uint4 raw;
  for (int i = 0; i < 4; ++i) raw[i] = as_type<uint>(metal::half2(half(v[2 * i]), half(v[2 * i + 1])));
  write_whole((device metal::uint4*)p, raw);
}

METAL_FUNC void store(device bfloat* p, thread const float (&v)[8]) {
  metal::uint4 raw;
  for (int i = 0; i < 4; ++i) raw[i] = as_type<uint>(metal::vec<bfloat, 2>(bfloat(v[2 * i]), bfloat(v[2 * i + 1])));
  write_whole((device metal::uint4*)p, raw);
}

// N elements from an address aligned to the widest vector that N allows, of at most 16 bytes.
template <typename T, int N> METAL_FUNC void load_wide(device const T* p, thread float (&v)[N]) {
  if (N % 8 == 0) {
    for (int i = 0; i < N; i += 8) {
      float x[8];
      load(p + i, x);
      for (int j = 0; j < 8; ++j) v[i + j] = x[j];
    }
  } else if (N % 4 == 0) {
    for (int i = 0; i < N; i += 4) {
      float x[4];
      load(p + i, x);
      for (int j = 0; j < 4; ++j) v[i + j] = x[j];
    }
  } else if (N % 2 == 0) {
    for (int i = 0; i < N / 2; ++i) {
      const metal::vec<T, 2> x = ((device const metal::vec<T, 2>*)p)[i];
      for (int j = 0; j < 2; ++j) v[2 * i + j] = float(x[j]);
    }
  } else {
    for (int i = 0; i < N; ++i) v[i] = float(p[i]);
  }
}

template <typename T, int N> METAL_FUNC void load_narrow(device const T* p, thread float (&v)[N]) {
  for (int i = 0; i < N; ++i) v[i] = float(p[i]);
}

} // namespace foundry
