// <metal_matrix>: matrices of columns; and metal::array.
#pragma once
#include "geometric.h"

namespace metal {

template <class T, int C, int R> struct matrix {
  vec<T, R> columns[C];

  matrix() = default;
  explicit MSL_INLINE matrix(T diagonal) {
    for (int c = 0; c < C; c++)
      for (int r = 0; r < R; r++) columns[c].d[r] = c == r ? diagonal : T(0);
  }
  template <class U, class = std::enable_if_t<!std::is_same_v<U, T>>>
  explicit MSL_INLINE matrix(const matrix<U, C, R>& other) {
    for (int c = 0; c < C; c++) columns[c] = vec<T, R>(other.columns[c]);
  }
  // All columns, or all elements column by column.
  template <class A, class B, class... X> MSL_INLINE matrix(const A& a, const B& b, const X&... rest) {
    static_assert(msl_::components_of<A> + msl_::components_of<B> + (0 + ... + msl_::components_of<X>) == C * R,
                  "matrix constructor: the arguments do not have as many components as the matrix");
    T all[C * R];
    int at = msl_::append(all, msl_::append(all, 0, a), b);
    ((at = msl_::append(all, at, rest)), ...);
    for (int c = 0; c < C; c++)
      for (int r = 0; r < R; r++) columns[c].d[r] = all[c * R + r];
  }
  MSL_INLINE vec<T, R>& operator[](int i) { return columns[i]; }
  MSL_INLINE const vec<T, R>& operator[](int i) const { return columns[i]; }
};

template <class T, int C, int R> MSL_INLINE vec<T, R> operator*(const matrix<T, C, R>& m, const vec<T, C>& v) {
  vec<T, R> r = m.columns[0] * v.d[0];
  for (int c = 1; c < C; c++) r += m.columns[c] * v.d[c];
  return r;
}
template <class T, int C, int R> MSL_INLINE vec<T, C> operator*(const vec<T, R>& v, const matrix<T, C, R>& m) {
  vec<T, C> r;
  for (int c = 0; c < C; c++) r.d[c] = dot(v, m.columns[c]);
  return r;
}
template <class T, int C, int R, int K>
MSL_INLINE matrix<T, C, R> operator*(const matrix<T, K, R>& a, const matrix<T, C, K>& b) {
  matrix<T, C, R> r;
  for (int c = 0; c < C; c++) r.columns[c] = a * b.columns[c];
  return r;
}
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator*(matrix<T, C, R> m, T scale) {
  for (int c = 0; c < C; c++) m.columns[c] *= scale;
  return m;
}
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator*(T scale, const matrix<T, C, R>& m) {
  return m * scale;
}
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator+(matrix<T, C, R> a, const matrix<T, C, R>& b) {
  for (int c = 0; c < C; c++) a.columns[c] += b.columns[c];
  return a;
}
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator-(matrix<T, C, R> a, const matrix<T, C, R>& b) {
  for (int c = 0; c < C; c++) a.columns[c] -= b.columns[c];
  return a;
}
template <class T, int C, int R> MSL_INLINE matrix<T, C, R> operator-(matrix<T, C, R> m) {
  for (int c = 0; c < C; c++) m.columns[c] = -m.columns[c];
  return m;
}
template <class T, int C, int R, class B> MSL_INLINE matrix<T, C, R>& operator+=(matrix<T, C, R>& a, const B& b) {
  return a = a + b;
}
template <class T, int C, int R, class B> MSL_INLINE matrix<T, C, R>& operator-=(matrix<T, C, R>& a, const B& b) {
  return a = a - b;
}
template <class T, int C, int R, class B> MSL_INLINE matrix<T, C, R>& operator*=(matrix<T, C, R>& a, const B& b) {
  if constexpr (is_arithmetic_v<B>)
    return a = a * T(b);
  else
    return a = a * b;
}
template <class T, int C, int R> MSL_INLINE bool operator==(const matrix<T, C, R>& a, const matrix<T, C, R>& b) {
  bool same = true;
  for (int c = 0; c < C; c++) same &= all(a.columns[c] == b.columns[c]);
  return same;
}
template <class T, int C, int R> MSL_INLINE bool operator!=(const matrix<T, C, R>& a, const matrix<T, C, R>& b) {
  return !(a == b);
}
template <class T, int C, int R> MSL_INLINE matrix<T, R, C> transpose(const matrix<T, C, R>& m) {
  matrix<T, R, C> t;
  for (int c = 0; c < C; c++)
    for (int r = 0; r < R; r++) t.columns[r].d[c] = m.columns[c].d[r];
  return t;
}
template <class T> MSL_INLINE T determinant(const matrix<T, 2, 2>& m) { return m[0][0] * m[1][1] - m[1][0] * m[0][1]; }
template <class T> MSL_INLINE T determinant(const matrix<T, 3, 3>& m) { return dot(m[0], cross(m[1], m[2])); }
template <class T> MSL_INLINE T determinant(const matrix<T, 4, 4>& m) {
  T sum = T(0);
  for (int c = 0; c < 4; c++) { // along the first row
    matrix<T, 3, 3> minor;
    for (int k = 0, to = 0; k < 4; k++)
      if (k != c) minor[to++] = vec<T, 3>(m[k][1], m[k][2], m[k][3]);
    sum += (c % 2 == 0 ? m[c][0] : -m[c][0]) * determinant(minor);
  }
  return sum;
}

// clang-format off
#define MSL_MATRIX_TYPES(X)                                                                                            \
  X(float, 2, 2) X(float, 2, 3) X(float, 2, 4) X(float, 3, 2) X(float, 3, 3) X(float, 3, 4) X(float, 4, 2)             \
  X(float, 4, 3) X(float, 4, 4) X(half, 2, 2) X(half, 2, 3) X(half, 2, 4) X(half, 3, 2) X(half, 3, 3) X(half, 3, 4)    \
  X(half, 4, 2) X(half, 4, 3) X(half, 4, 4) X(bfloat, 2, 2) X(bfloat, 2, 3) X(bfloat, 2, 4) X(bfloat, 3, 2)            \
  X(bfloat, 3, 3) X(bfloat, 3, 4) X(bfloat, 4, 2) X(bfloat, 4, 3) X(bfloat, 4, 4)
// clang-format on
#define MSL_DECLARE(T, C, R) typedef matrix<T, C, R> T##C##x##R;
MSL_MATRIX_TYPES(MSL_DECLARE)
#undef MSL_DECLARE

template <class T, size_t N> struct array {
  T elements[N != 0 ? N : 1];

  MSL_INLINE constexpr T& operator[](size_t i) { return elements[i]; }
  MSL_INLINE constexpr const T& operator[](size_t i) const { return elements[i]; }
  MSL_INLINE constexpr T* data() { return elements; }
  MSL_INLINE constexpr const T* data() const { return elements; }
  MSL_INLINE constexpr T* begin() { return elements; }
  MSL_INLINE constexpr T* end() { return elements + N; }
  MSL_INLINE constexpr const T* begin() const { return elements; }
  MSL_INLINE constexpr const T* end() const { return elements + N; }
  MSL_INLINE constexpr size_t size() const { return N; }
  MSL_INLINE constexpr bool empty() const { return N == 0; }
};

} // namespace metal

MSL_SHADER_SCOPE_BEGIN
#define MSL_EXPOSE(T, C, R) using metal::T##C##x##R;
MSL_MATRIX_TYPES(MSL_EXPOSE)
#undef MSL_EXPOSE
MSL_SHADER_SCOPE_END
