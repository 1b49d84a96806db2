// <metal_simdgroup_matrix>: 8x8 matrices spread over the lanes of a simdgroup, two elements a lane.
//
// Products accumulate in float and round once to the type of the result; how, is in the platform's matrix_product.h.
#pragma once
#include "matrix_product.h"
#include "simd.h"

namespace metal {

template <class T, int Cols = 8, int Rows = 8> struct simdgroup_matrix {
  static_assert(Cols == 8 && Rows == 8, "simdgroup_matrix is 8x8");
  static_assert(is_floating_point_v<T>, "simdgroup_matrix holds float, half or bfloat");
  using storage_type = vec<T, 2>;
  vec<T, 2> elements;

  simdgroup_matrix() = default;
  explicit MSL_INLINE simdgroup_matrix(T diagonal) {
    const uint lane = msl_::own_lane(), row = msl_::matrix_row(lane), column = msl_::matrix_column(lane);
    elements.d[0] = row == column ? diagonal : T(0.0f);
    elements.d[1] = row == column + 1 ? diagonal : T(0.0f);
  }
  MSL_INLINE vec<T, 2>& thread_elements() { return elements; }
  MSL_INLINE const vec<T, 2>& thread_elements() const { return elements; }
};

typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;

template <class T, int Cols = 8, int Rows = 8>
MSL_INLINE simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(T value) {
  simdgroup_matrix<T, Cols, Rows> m;
  m.elements = vec<T, 2>(value);
  return m;
}
template <class T, int Cols = 8, int Rows = 8, class U, class = std::enable_if_t<!std::is_same_v<T, U>>>
MSL_INLINE simdgroup_matrix<T, Cols, Rows> make_filled_simdgroup_matrix(U value) {
  return make_filled_simdgroup_matrix<T, Cols, Rows>(T(value));
}
template <class T, int Cols = 8, int Rows = 8>
MSL_INLINE simdgroup_matrix<T, Cols, Rows> make_diagonal_simdgroup_matrix(T value) {
  return simdgroup_matrix<T, Cols, Rows>(value);
}
template <class T, int Cols = 8, int Rows = 8, class U, class = std::enable_if_t<!std::is_same_v<T, U>>>
MSL_INLINE simdgroup_matrix<T, Cols, Rows> make_diagonal_simdgroup_matrix(U value) {
  return simdgroup_matrix<T, Cols, Rows>(T(value));
}

} // namespace metal

namespace msl_ {
// Where the lane's two elements lie in memory: origin.x counts columns of memory, origin.y its rows.
MSL_INLINE void matrix_offsets(ulong (&offsets)[2], ulong stride, metal::ulong2 origin, bool transposed) {
  const uint lane = msl_::own_lane(), row = msl_::matrix_row(lane), column = msl_::matrix_column(lane);
  for (uint k = 0; k < 2; k++) {
    const ulong r = transposed ? column + k : row, c = transposed ? row : column + k;
    offsets[k] = (origin.d[1] + r) * stride + origin.d[0] + c;
  }
}
} // namespace msl_

namespace metal {

template <class T>
MSL_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const T* source, ulong elements_per_row = 8,
                               ulong2 origin = ulong2(0), bool transpose_matrix = false) {
  ulong at[2];
  msl_::matrix_offsets(at, elements_per_row, origin, transpose_matrix);
  m.elements.d[0] = source[at[0]];
  m.elements.d[1] = source[at[1]];
}
template <class T>
MSL_INLINE void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, T* destination, ulong elements_per_row = 8,
                                ulong2 origin = ulong2(0), bool transpose_matrix = false) {
  ulong at[2];
  msl_::matrix_offsets(at, elements_per_row, origin, transpose_matrix);
  destination[at[0]] = m.elements.d[0];
  destination[at[1]] = m.elements.d[1];
}
template <class T>
MSL_INLINE void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, const volatile T* source, ulong elements_per_row = 8,
                               ulong2 origin = ulong2(0), bool transpose_matrix = false) {
  simdgroup_load(m, const_cast<const T*>(source), elements_per_row, origin, transpose_matrix);
}

template <class D, class A, class B, class C>
MSL_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                              const simdgroup_matrix<B, 8, 8>& b, const simdgroup_matrix<C, 8, 8>& c,
                                              MSL_LINE) {
  const msl_::Pair r = msl_::multiply_accumulate(a.elements, b.elements, msl_::to_pair(c.elements), line);
  d.elements = vec<D, 2>(r.x, r.y);
}
template <class D, class A, class B>
MSL_INLINE void simdgroup_multiply(simdgroup_matrix<D, 8, 8>& d, const simdgroup_matrix<A, 8, 8>& a,
                                   const simdgroup_matrix<B, 8, 8>& b, MSL_LINE) {
  const msl_::Pair r = msl_::multiply_accumulate(a.elements, b.elements, msl_::Pair{0.0f, 0.0f}, line);
  d.elements = vec<D, 2>(r.x, r.y);
}
template <class T>
MSL_INLINE simdgroup_matrix<T, 8, 8> operator*(const simdgroup_matrix<T, 8, 8>& a, const simdgroup_matrix<T, 8, 8>& b) {
  simdgroup_matrix<T, 8, 8> product;
  simdgroup_multiply(product, a, b, 0); // an operator cannot tell the line it is used on
  return product;
}

} // namespace metal
