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

} // namespace foundry
