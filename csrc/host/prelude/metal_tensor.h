// <metal_tensor> and <MetalPerformancePrimitives/..>: of products of matrices by several simdgroups what kernels here
// use. Included where a shader includes those.
//
// Which thread has which element of a product is the implementation's to choose: here msl_rt_tensor_layout() chooses,
// so that a kernel which takes a layout for granted shows. As in Metal a product reads its operands at once and without
// a barrier, what lies outside of a tensor counts as zero, and nothing is said of elements until they are written. Sums
// are float, in order of k.
#pragma once
#include "metal_prelude.h"

namespace metal {

// Only of rank 2: columns, which lie side by side, then rows.
template <class Index, size_t Rank> struct dextents {
  static_assert(Rank == 2, "tensors have two dimensions here");
  Index sizes[2];
  MSL_INLINE dextents(Index columns, Index rows) : sizes{columns, rows} {}
};

struct tensor_inline {};

// A matrix in memory that somebody else owns, row behind row.
template <class T, class Extents, class Kind> struct tensor;
template <class T, class Index> struct tensor<T, dextents<Index, 2>, tensor_inline> {
  using element_type = T;
  T* data;
  dextents<Index, 2> extents;
  MSL_INLINE tensor(T* data, dextents<Index, 2> extents) : data(data), extents(extents) {}
};

template <int Simdgroups> struct execution_simdgroups {};

} // namespace metal

namespace msl_ {

// An element of a tensor, or of its transpose.
template <bool Transposed, class T> MSL_INLINE float element_at(const T& x, int row, int column) {
  const int r = Transposed ? column : row, c = Transposed ? row : column;
  const auto [columns, rows] = x.extents.sizes;
  return r < rows && c < columns ? static_cast<float>(x.data[r * columns + c]) : 0.0f;
}

// Layouts by number: bit 0: half as many places again as there are elements; bit 1: a thread's elements lie apart; the
// rest: a permutation.
MSL_INLINE uint tensor_layout() { return current()->simdgroup->group->tensor_layout; }

} // namespace msl_

namespace metal {

// What this thread has of a matrix. Places of no element have one outside of it.
template <class T, int Rows, int Columns, int Threads> class cooperative_tensor {
  static_assert((Rows & (Rows - 1)) == 0 && (Columns & (Columns - 1)) == 0 && (Threads & (Threads - 1)) == 0 &&
                    Rows * Columns >= 2 * Threads,
                "powers of two, of which powers of five are permutations");
  static constexpr int kOwn = Rows * Columns / Threads, kMost = kOwn + kOwn / 2;
  T elements_[kMost];

  MSL_INLINE int place(int i) const {
    const uint layout = msl_::tensor_layout(), thread = msl_::current()->index, places = get_capacity() * Threads;
    uint place = layout & 2 ? i * Threads + thread : thread * get_capacity() + i;
    for (uint turn = layout >> 2; turn > 0; turn--) place = place * 5 % places;
    return place;
  }

public:
  MSL_INLINE cooperative_tensor() {
    for (T& element : elements_) element = T(__builtin_nanf(""));
  }
  MSL_INLINE ushort get_capacity() const { return msl_::tensor_layout() & 1 ? kMost : kOwn; }
  MSL_INLINE bool is_valid_element(ushort i) const { return i < get_capacity() && place(i) < Rows * Columns; }
  MSL_INLINE array<int, 2> get_multidimensional_index(ushort i) const {
    return {place(i) % Columns, place(i) / Columns};
  }
  MSL_INLINE T& operator[](ushort i) { return elements_[i % kMost]; }
};

} // namespace metal

namespace mpp {
namespace tensor_ops {

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;
  constexpr matmul2d_descriptor(int m, int n, int k, bool transpose_left = false, bool transpose_right = false,
                                bool relaxed_precision = false, mode matmul_mode = mode::multiply)
      : m(m), n(n), k(k), transpose_left(transpose_left), transpose_right(transpose_right),
        relaxed_precision(relaxed_precision), matmul_mode(matmul_mode) {}
  // Of C++17's template arguments none is of a class: a number stands for it.
  constexpr operator ulong() const {
    return static_cast<ulong>(m) | static_cast<ulong>(n) << 16 | static_cast<ulong>(k) << 32 |
           static_cast<ulong>(transpose_left) << 48 | static_cast<ulong>(transpose_right) << 49 |
           static_cast<ulong>(matmul_mode == mode::multiply_accumulate) << 50;
  }
};

template <ulong Descriptor, class Scope> class matmul2d;
template <ulong Descriptor, int Simdgroups> class matmul2d<Descriptor, metal::execution_simdgroups<Simdgroups>> {
  static constexpr int kRows = Descriptor & 0xffff, kColumns = Descriptor >> 16 & 0xffff,
                       kInner = Descriptor >> 32 & 0xffff;
  static constexpr bool kLeftTurned = Descriptor >> 48 & 1, kRightTurned = Descriptor >> 49 & 1;
  static constexpr bool kAdds = Descriptor >> 50 & 1;
  static constexpr uint kThreads = Simdgroups * msl_::kLanes;

public:
  template <class Left, class Right, class T>
  MSL_INLINE metal::cooperative_tensor<T, kRows, kColumns, kThreads> get_destination_cooperative_tensor() const {
    return {};
  }

  template <class Left, class Right>
  MSL_INLINE void run(Left& left, Right& right,
                      metal::cooperative_tensor<float, kRows, kColumns, kThreads>& destination,
                      int line = __builtin_LINE()) const {
    using A = typename Left::element_type;
    static_assert(std::is_same_v<A, typename Right::element_type> && sizeof(A) == 2, "operands of one 16-bit type");
    if (msl_::current()->simdgroup->group->nthreads != kThreads)
      msl_rt_report(line, "", "a product by another number of simdgroups than its threadgroup has");
    for (ushort i = 0; i < destination.get_capacity(); i++) {
      const auto [column, row] = destination.get_multidimensional_index(i).elements;
      if (!destination.is_valid_element(i)) continue;
      float sum = kAdds ? destination[i] : 0.0f;
      for (int k = 0; k < kInner; k++)
        sum += msl_::element_at<kLeftTurned>(left, row, k) * msl_::element_at<kRightTurned>(right, k, column);
      destination[i] = sum;
    }
  }
};

} // namespace tensor_ops
} // namespace mpp
