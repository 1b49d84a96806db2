// Argument checks that read like a signature, and fail like one: `x: expected [tokens, hidden=896], got [3, 897]`.
#pragma once

#include <initializer_list>
#include <string>

#include <ATen/core/Tensor.h>

namespace foundry {

// A size shared by several arguments: unknown until the first of them binds it.
class Dim {
public:
  explicit Dim(const char* name, int64_t value = -1) : name_(name), value_(value) {}
  int64_t value() const;
  operator int64_t() const { return value(); }
  std::string str() const;

private:
  friend class Check;
  friend class DimRef;
  const char* name_;
  int64_t value_;
};

// An element of a shape: a Dim or a plain number.
class DimRef {
public:
  DimRef(Dim& dim) : dim_(&dim) {}
  DimRef(int64_t value) : literal_(value) {}
  DimRef(int value) : literal_(value) {}
  std::string str() const { return dim_ ? dim_->str() : std::to_string(literal_); }
  bool known() const { return !dim_ || dim_->value_ >= 0; }
  void forget() { dim_->value_ = -1; }
  bool bind(int64_t size);

private:
  Dim* dim_ = nullptr;
  int64_t literal_ = -1;
};

class Check {
public:
  Check(const char* name, const at::Tensor& tensor, bool pages = false);
  Check& shape(std::initializer_list<DimRef> dims);
  Check& dim(int64_t n);    // number of dimensions
  Check& last(DimRef size); // size of the last dimension
  Check& contiguous();
  Check& last_dim_contiguous();
  Check& floating(); // float32, float16 or bfloat16
  Check& dtype(std::initializer_list<at::ScalarType> allowed);
  Check& device(const at::Tensor& other);
  Check& like(const at::Tensor& other);                             // same dtype and device
  Check& disjoint(const char* other_name, const at::Tensor& other); // no shared memory

private:
  const char* name_;
  const at::Tensor& tensor_;
};

// Every check begins here: the tensor is defined, strided, on a device with an executor, and 32-bit indexable.
inline Check check(const char* name, const at::Tensor& tensor) { return Check(name, tensor); }

// The same for tensors of which kernels count the first dimension apart: what follows it must be 32-bit indexable.
inline Check check_pages(const char* name, const at::Tensor& tensor) { return Check(name, tensor, true); }

} // namespace foundry
