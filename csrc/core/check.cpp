#include "core/check.h"

#include <limits>
#include <sstream>

#include <ATen/MemoryOverlap.h>
#include <c10/util/Exception.h>

namespace foundry {
namespace {

std::string sizes(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

std::string list(std::initializer_list<DimRef> dims) {
  std::string text = "[";
  for (const DimRef& d : dims) text += (text.size() > 1 ? ", " : "") + d.str();
  return text + "]";
}

} // namespace

int64_t Dim::value() const {
  TORCH_INTERNAL_ASSERT(value_ >= 0, "dimension ", name_, " is used before an argument binds it");
  return value_;
}

std::string Dim::str() const { return value_ < 0 ? name_ : std::string(name_) + "=" + std::to_string(value_); }

bool DimRef::bind(int64_t size) {
  if (!dim_) return size == literal_;
  if (dim_->value_ < 0) dim_->value_ = size;
  return dim_->value_ == size;
}

Check::Check(const char* name, const at::Tensor& tensor, bool pages) : name_(name), tensor_(tensor) {
  TORCH_CHECK(tensor.defined(), name, ": expected a tensor, got none");
  TORCH_CHECK(tensor.layout() == at::kStrided, name, ": expected a strided tensor, got layout ", tensor.layout());
  constexpr int64_t limit = std::numeric_limits<int32_t>::max();
  int64_t extent = 1; // elements from the first to the last in memory
  for (int64_t i = 0; i < tensor.dim(); i++) {
    TORCH_CHECK(tensor.stride(i) >= 0, name, ": expected non-negative strides, got ", tensor.strides());
    const int64_t steps = std::max<int64_t>(tensor.size(i), 1) - 1;
    extent += (pages && i == 0 ? std::min<int64_t>(steps, 1) : steps) * tensor.stride(i); // pages: to the next one
  }
  TORCH_CHECK((pages || tensor.numel() <= limit) && extent <= limit, name, ": expected at most 2^31-1 elements, got ",
              sizes(tensor), " (kernels index with 32 bits)");
}

Check& Check::shape(std::initializer_list<DimRef> dims) {
  bool ok = tensor_.dim() == static_cast<int64_t>(dims.size());
  int64_t bound = 0; // a bit for each of the dims that this tensor binds
  int i = 0;
  for (DimRef d : dims) {
    if (!ok) break;
    bound |= int64_t(!d.known()) << i;
    ok = d.bind(tensor_.size(i++));
  }
  if (ok) return *this;
  i = 0;
  for (DimRef d : dims) // the message shows what was known before
    if (bound >> i++ & 1) d.forget();
  TORCH_CHECK(false, name_, ": expected ", list(dims), ", got ", sizes(tensor_));
}

Check& Check::dim(int64_t n) {
  TORCH_CHECK(tensor_.dim() == n, name_, ": expected ", n, " dimensions, got ", sizes(tensor_));
  return *this;
}

Check& Check::last(DimRef size) {
  TORCH_CHECK(tensor_.dim() > 0 && size.bind(tensor_.size(-1)), name_, ": expected [..., ", size.str(), "], got ",
              sizes(tensor_));
  return *this;
}

Check& Check::contiguous() {
  TORCH_CHECK(tensor_.is_contiguous(), name_, ": expected a contiguous tensor, got shape ", sizes(tensor_),
              " with strides ", tensor_.strides());
  return *this;
}

Check& Check::last_dim_contiguous() {
  TORCH_CHECK(tensor_.dim() > 0 && (tensor_.stride(-1) == 1 || tensor_.size(-1) <= 1), name_,
              ": expected a contiguous last dimension, got strides ", tensor_.strides());
  return *this;
}

Check& Check::floating() { return dtype({at::kFloat, at::kHalf, at::kBFloat16}); }

Check& Check::dtype(std::initializer_list<at::ScalarType> allowed) {
  std::string names;
  for (at::ScalarType t : allowed) {
    if (tensor_.scalar_type() == t) return *this;
    names += std::string(names.empty() ? "" : " or ") + c10::toString(t);
  }
  TORCH_CHECK(false, name_, ": expected dtype ", names, ", got ", tensor_.scalar_type());
}

Check& Check::device(const at::Tensor& other) {
  TORCH_CHECK(tensor_.device() == other.device(), name_, ": expected device ", other.device(), ", got ",
              tensor_.device());
  return *this;
}

Check& Check::like(const at::Tensor& other) {
  TORCH_CHECK(tensor_.scalar_type() == other.scalar_type(), name_, ": expected dtype ", other.scalar_type(), ", got ",
              tensor_.scalar_type());
  return device(other);
}

namespace {

// Whether two tensors lie in the gaps of each other's first dimension, as pages of keys and values in one memory do.
bool take_turns(const at::Tensor& a, const at::Tensor& b) {
  if (!a.dim() || !b.dim() || a.scalar_type() != b.scalar_type() || a.stride(0) != b.stride(0) || a.stride(0) <= 0)
    return false;
  const auto block = [](const at::Tensor& x) { // elements from its first to its last
    int64_t extent = 1;
    for (int64_t d = 1; d < x.dim(); d++) extent += (x.size(d) - 1) * x.stride(d);
    return extent;
  };
  const int64_t step = a.stride(0), distance = (b.storage_offset() - a.storage_offset()) % step;
  const int64_t gap = distance < 0 ? distance + step : distance; // from a block of a to the next one of b
  return gap >= block(a) && gap + block(b) <= step;
}

} // namespace

Check& Check::disjoint(const char* other_name, const at::Tensor& other) {
  const bool shared = tensor_.numel() && other.numel() && tensor_.is_alias_of(other) &&
                      at::get_overlap_status(tensor_, other) != at::MemOverlapStatus::No && !take_turns(tensor_, other);
  TORCH_CHECK(!shared, name_, ": expected memory of its own, but it overlaps ", other_name);
  return *this;
}

} // namespace foundry
