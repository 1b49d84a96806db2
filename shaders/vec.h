// Reading and writing V neighbouring elements as floats. V is 4 when the host proved that every address is aligned to
// four elements, else 1: a misaligned vector access is undefined on the GPU.
#pragma once
#include "portable.h"

namespace foundry {

template <typename T> METAL_FUNC void load(device const T* p, thread float (&v)[1]) { v[0] = float(p[0]); }

template <typename T> METAL_FUNC void load(device const T* p, thread float (&v)[4]) {
  const metal::vec<T, 4> x = *(device const metal::vec<T, 4>*)p;
  v[0] = float(x[0]);
  v[1] = float(x[1]);
  v[2] = float(x[2]);
  v[3] = float(x[3]);
}

template <typename T> METAL_FUNC void store(device T* p, thread const float (&v)[1]) { p[0] = T(v[0]); }

template <typename T> METAL_FUNC void store(device T* p, thread const float (&v)[4]) {
  *(device metal::vec<T, 4>*)p = metal::vec<T, 4>(T(v[0]), T(v[1]), T(v[2]), T(v[3]));
}

// N elements from an address aligned to the widest vector that N allows.
template <typename T, int N> METAL_FUNC void load_wide(device const T* p, thread float (&v)[N]) {
  if (N % 4 == 0) {
    for (int i = 0; i < N / 4; ++i) {
      const metal::vec<T, 4> x = ((device const metal::vec<T, 4>*)p)[i];
      for (int j = 0; j < 4; ++j) v[4 * i + j] = float(x[j]);
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
