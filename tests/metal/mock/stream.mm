// at::mps of torch's macOS library: the stream that the product encodes on, the device, the profiler's hooks.
#include <ATen/mps/MPSDevice.h>
#include <ATen/mps/MPSProfiler.h>
#include <ATen/mps/MPSStream.h>

#include "commands.h"
#include "queues.h"

namespace at::mps {

MPSDevice* MPSDevice::_device = nullptr;
MPSDevice::MPSDevice() : _mtl_device(mock::device()) {}
MPSDevice::~MPSDevice() = default;
MPSDevice* MPSDevice::getInstance() {
  static MPSDevice* made = new MPSDevice();
  return made;
}
std::string MPSDevice::getName() const { return "Mock GPU"; }
unsigned MPSDevice::getCoreCount() const { return 8; }

MPSStream::MPSStream(Stream stream) : _stream(stream) {
  _commandQueue = [mock::device() newCommandQueue];
  _serialQueue = dispatch_queue_create("metal gpu stream", nullptr);
}
MPSStream::~MPSStream() = default;

MPSCommandBuffer_t MPSStream::commandBuffer() {
  MOCK_RULE("off-queue", mock::on_queue(_serialQueue), "MPSStream::commandBuffer() outside of the stream's queue");
  if (!_commandBuffer) {
    @autoreleasepool {
      _commandBuffer = mock::make_mps_buffer(static_cast<MockQueue*>(_commandQueue));
    }
  }
  return _commandBuffer;
}

MTLComputeCommandEncoder_t MPSStream::commandEncoder() {
  MOCK_RULE("off-queue", mock::on_queue(_serialQueue), "MPSStream::commandEncoder() outside of the stream's queue");
  if (!_commandEncoder) {
    @autoreleasepool {
      _commandEncoder = [[commandBuffer() computeCommandEncoder] retain];
    }
  }
  if (mock::settings().capturing) return mock::capturing(_commandEncoder);
  return _commandEncoder;
}

void MPSStream::endKernelCoalescing() {
  if (!_commandEncoder) return;
  [_commandEncoder endEncoding];
  [_commandEncoder release];
  _commandEncoder = nil;
}

void MPSStream::commit() {
  @autoreleasepool {
    if (_commandBuffer) [_commandBuffer commitAndContinue];
  }
}

void MPSStream::commitAndWait() {
  @autoreleasepool {
    if (_commandBuffer) {
      [_commandBuffer commit];
      [_commandBuffer release];
      _commandBuffer = nil;
    }
    mock::drain(_commandQueue);
  }
  mock::throw_noted();
}

void MPSStream::synchronize(SyncType type) {
  MOCK_RULE("off-queue", mock::on_queue(_serialQueue), "MPSStream::synchronize() outside of the stream's queue");
  endKernelCoalescing();
  switch (type) {
  case SyncType::NONE: break;
  case SyncType::COMMIT_ADAPTIVE: break; // there is memory enough
  case SyncType::COMMIT:
  case SyncType::COMMIT_AND_CONTINUE: commit(); break;
  case SyncType::COMMIT_AND_WAIT: commitAndWait(); break;
  }
}

void MPSStream::addCompletedHandler(MTLCommandBufferHandler handler) {
  dispatch_sync(_serialQueue, ^{
    @autoreleasepool {
      [commandBuffer() addCompletedHandler:handler];
    }
  });
}

MPSStream* getDefaultMPSStream() {
  static MPSStream* made = new MPSStream(Stream(Stream::UNSAFE, c10::Device(DeviceType::MPS, 0), 0));
  return made;
}
MPSStream* getCurrentMPSStream() { // never destroyed
  if (!mock::settings().thread_streams) return getDefaultMPSStream();
  static thread_local auto* made = new MPSStream(Stream(Stream::UNSAFE, c10::Device(DeviceType::MPS, 0), 1));
  return made;
}

void dispatch_sync_with_rethrow(dispatch_queue_t queue, void (^block)()) {
  __block std::exception_ptr thrown;
  dispatch_sync(queue, ^{
    try {
      block();
    } catch (...) {
      thrown = std::current_exception();
    }
  });
  if (thrown) std::rethrow_exception(thrown);
}

namespace Profiler {
namespace {
thread_local std::vector<const void*> open; // kernels between begin and end
}
MPSProfiler::MPSProfiler() = default;
MPSProfiler::~MPSProfiler() = default;
uint64_t MPSProfiler::beginProfileKernel(const void* handle, const std::string& name, const TensorList&) {
  MOCK_RULE("profiler-hooks", handle, "beginProfileKernel without a handle");
  open.push_back(handle);
  mock::trace("begin " + name);
  return 0;
}
uint64_t MPSProfiler::beginProfileKernel(const void* handle, const std::string& name, bool) {
  return beginProfileKernel(handle, name, TensorList());
}
void MPSProfiler::endProfileKernel(const void* handle, SyncType) {
  MOCK_RULE("profiler-hooks", !open.empty() && open.back() == handle,
            "endProfileKernel without its beginProfileKernel");
  open.pop_back();
  mock::trace("end");
}
void MPSProfiler::StartTrace(const std::string&, bool) { m_signpost_types = SignpostTypes::RUN_OPERATION; }
void MPSProfiler::StopTrace() { m_signpost_types = SignpostTypes::SIGNPOST_NONE; }
const std::string BaseInfo::toString(double, double) const { return ""; }
const std::string OperationInfo::toString(double, double) const { return ""; }
const std::string CpuFbInfo::toString(double, double) const { return ""; }
const std::string CopyInfo::toString(double, double) const { return ""; }
} // namespace Profiler

Profiler::MPSProfiler& getMPSProfiler() {
  static auto* made = new Profiler::MPSProfiler();
  return *made;
}

} // namespace at::mps

namespace mock {

void synchronize() {
  auto* stream = at::mps::getCurrentMPSStream();
  at::mps::dispatch_sync_with_rethrow(stream->queue(), ^{
    stream->synchronize(at::mps::SyncType::COMMIT_AND_WAIT);
  });
}

// For callers from Python, whose threads have no pool of their own: an exception leaves the pool of its
// @autoreleasepool behind, here as on a Mac, and what is in there would look like a leak.
void settle() {
  synchronize();
  while (NSAutoreleasePool* left = [NSAutoreleasePool currentPool]) [left release];
}

// As torch.mps.profiler.start() and stop().
void profile(bool on) {
  auto& profiler = at::mps::getMPSProfiler();
  if (on)
    profiler.StartTrace("interval", false);
  else
    profiler.StopTrace();
}

// Work of the mock's own aten kernels, in the stream's order.
void enqueue(std::function<void()> work) {
  auto* stream = at::mps::getCurrentMPSStream();
  auto* given = &work;
  at::mps::dispatch_sync_with_rethrow(stream->queue(), ^{
    stream->endKernelCoalescing();
    [mock::current_buffer(stream->commandBuffer()) add:std::move(*given)];
  });
}

} // namespace mock
