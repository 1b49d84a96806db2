// The few aten kernels that an `mps` device needs to hold tensors; every other op runs on the CPU.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include "device_memory.h"

namespace mock {
namespace {

// One device and one stream; an event is its recording, and waiting for it means waiting for all that was encoded.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::MPS> {
  using Device = c10::Device;
  using Stream = c10::Stream;
  static Stream stream() { return Stream(Stream::DEFAULT, Device(c10::kMPS, 0)); }
  Device getDevice() const override { return Device(c10::kMPS, 0); }
  Device exchangeDevice(Device) const override { return getDevice(); }
  Stream getStream(Device) const noexcept override { return stream(); }
  Stream exchangeStream(Stream) const noexcept override { return stream(); }
  void record(void** event, const Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    static char recorded;
    *event = &recorded;
  }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return false; } // a GPU as slow as can be
  void synchronizeEvent(void* event) const override {
    if (event) synchronize();
  }
  void synchronizeStream(const Stream&) const override { synchronize(); }
  void synchronizeDevice(const c10::DeviceIndex) const override { synchronize(); }
};
C10_REGISTER_GUARD_IMPL(MPS, Guard);

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::MPS);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, allocator(), kKeys, dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, allocator(), kKeys, dtype.value_or(at::kFloat));
}

// The same memory as a CPU tensor; valid as long as `tensor` is.
at::Tensor on_host(const at::Tensor& tensor) {
  auto* address = static_cast<char*>(host_address(tensor.storage().data()));
  return at::from_blob(address + tensor.storage_offset() * tensor.element_size(), tensor.sizes(), tensor.strides(),
                       at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU));
}

at::Tensor& copy(at::Tensor& target, const at::Tensor& source, bool) {
  if (target.numel() == 0) return target;
  if (target.is_mps() && source.is_mps()) { // on the GPU, in the stream's order
    at::Tensor from = source.expand(target.sizes());
    enqueue([target, from]() mutable {
      at::NoGradGuard no_grad;
      on_host(target).copy_(on_host(from));
    });
    return target;
  }
  synchronize();
  at::Tensor to = target.is_mps() ? on_host(target) : target;
  to.copy_(source.is_mps() ? on_host(source) : source);
  return target;
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool non_blocking) {
  at::Tensor to = target;
  copy(to, source, non_blocking);
  return target;
}

const at::Tensor& resize_in_place(const at::Tensor& tensor, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* impl = tensor.unsafeGetTensorImpl();
  const auto needed = static_cast<size_t>(c10::multiply_integers(size) * tensor.element_size()) +
                      static_cast<size_t>(tensor.storage_offset() * tensor.element_size());
  if (needed > tensor.storage().nbytes()) {
    at::Tensor grown = at::empty({static_cast<int64_t>(needed)}, tensor.options().dtype(at::kByte));
    if (tensor.storage().nbytes() > 0) {
      at::Tensor old = at::empty({0}, grown.options()).set_(tensor.storage());
      grown.slice(0, 0, old.numel()).copy_(old);
    }
    tensor.storage().set_data_ptr_noswap(std::move(grown.storage().mutable_data_ptr()));
    tensor.storage().unsafeGetStorageImpl()->set_nbytes(needed);
  }
  impl->set_sizes_contiguous(size);
  return tensor;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) resize_in_place(target, source.sizes(), std::nullopt);
  return copy_from(source, target, false);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const int64_t size = static_cast<int64_t>(source.nbytes()) / self.element_size();
  return set_storage(self, std::move(source), 0, {size}, {1});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  synchronize();
  return on_host(tensor).item();
}

// The composite op asks a table of kernels that has no entry for this device.
at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                     const std::optional<at::Tensor>& mask, double dropout, bool causal, std::optional<double> scale,
                     bool enable_gqa) {
  return std::get<0>(
      at::_scaled_dot_product_attention_math(query, key, value, mask, dropout, causal, {}, scale, enable_gqa));
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) { at::native::cpu_fallback(op, stack); }

} // namespace

TORCH_LIBRARY_IMPL(aten, MPS, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("copy_", &copy);
  m.impl("resize_", &resize_in_place);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("scaled_dot_product_attention", &attention);
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
}

TORCH_LIBRARY_IMPL(aten, AutogradMPS, m) { m.impl("scaled_dot_product_attention", &attention); }

TORCH_LIBRARY_IMPL(_, MPS, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>()); }

} // namespace mock
