// <metal_tensor> and <MetalPerformancePrimitives/..> for the address-space check: what csrc/host/prelude/metal_tensor.h
// has, where a source includes those.
#pragma once

namespace metal {
template <class Index, size_t Rank> struct dextents {
  dextents(Index, Index);
};
struct tensor_inline;
template <class T, class Extents, class Kind> struct tensor {
  tensor(T*, Extents);
};
template <int Simdgroups> struct execution_simdgroups;
template <class T> struct cooperative_tensor {
  ushort get_capacity() const;
  bool is_valid_element(ushort) const;
  array<int, 2> get_multidimensional_index(ushort) const;
  __private T& operator[](ushort);
};
} // namespace metal

namespace mpp {
namespace tensor_ops {
struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  constexpr matmul2d_descriptor(int, int, int, bool = false, bool = false, bool = false, mode = mode::multiply) {}
  constexpr operator ulong() const { return 0; } // as in the prelude
};
template <ulong Descriptor, class Scope> struct matmul2d {
  template <class Left, class Right, class T> metal::cooperative_tensor<T> get_destination_cooperative_tensor() const;
  template <class Left, class Right, class T>
  void run(__private Left&, __private Right&, __private metal::cooperative_tensor<T>&) const;
};
} // namespace tensor_ops
} // namespace mpp
