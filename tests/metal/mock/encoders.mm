#include <algorithm>
#include <cstring>

#include "commands.h"
#include "icb.h"

namespace mock {
namespace {

constexpr uint64_t kMaxPosition = UINT32_MAX; // thread_position_in_grid has 32 bits an axis

uint64_t axis(const MTLSize& size, int i) { return i == 0 ? size.width : i == 1 ? size.height : size.depth; }
uint64_t volume(const MTLSize& size) { return uint64_t{size.width} * size.height * size.depth; }

void check_binding(const Dispatch& d, const ProgramKernel& kernel, const Parameter& parameter) {
  if (!uses(d.pipeline.get(), parameter)) return;
  if (parameter.kind == "buffer") {
    const Slot& slot = d.slots.at(parameter.index);
    MOCK_RULE("unbound-buffer", slot.bound(), kernel.name, ": nothing is bound for ", parameter.name, " at index ",
              parameter.index);
    MOCK_RULE("constant-alignment", !parameter.constant || slot.offset % 4 == 0, kernel.name, ": offset ", slot.offset,
              " of ", parameter.name, " at index ", parameter.index, " in constant address space is no multiple of 4");
  } else if (parameter.kind == "threadgroup") {
    MOCK_RULE("threadgroup-memory", d.memory.at(parameter.index) > 0, kernel.name, ": threadgroup memory ",
              parameter.index, " has no length");
  }
}

} // namespace

void check_offset(MockBuffer* buffer, NSUInteger offset, NSUInteger index) {
  MOCK_RULE("buffer-index", index < kSlots, "buffer index ", index, ", Metal has 0 to 30");
  if (buffer)
    MOCK_RULE("buffer-offset", offset < buffer->length, "offset ", offset, " in a buffer of ", buffer->length,
              " bytes, at index ", index);
}

void check_memory_length(NSUInteger length, NSUInteger index) {
  MOCK_RULE("buffer-index", index < kSlots, "threadgroup memory index ", index, ", Metal has 0 to 30");
  MOCK_RULE("threadgroup-memory", length % 16 == 0, "threadgroup memory of ", length, " bytes is no multiple of 16");
  MOCK_RULE("threadgroup-memory", length <= 32768, "threadgroup memory of ", length, " bytes, Metal has 32768");
}

void check_dispatch(const Dispatch& d) {
  MOCK_RULE("no-pipeline", d.pipeline, "a dispatch before setComputePipelineState");
  const ProgramKernel& kernel = *d.pipeline.get()->kernel;
  MOCK_RULE("empty-grid", volume(d.size) > 0, kernel.name, ": grid of ", d.size.width, " x ", d.size.height, " x ",
            d.size.depth);
  MOCK_RULE("threadgroup-size", volume(d.group) > 0, kernel.name, ": threadgroup of ", d.group.width, " x ",
            d.group.height, " x ", d.group.depth);
  MOCK_RULE("threadgroup-size", volume(d.group) <= d.pipeline.get()->maxThreads, kernel.name, ": ", volume(d.group),
            " threads in a threadgroup, the pipeline has ", d.pipeline.get()->maxThreads);
  for (int i = 0; i < 3; i++)
    MOCK_RULE("grid-size", axis(d.size, i) * (d.threads ? 1 : axis(d.group, i)) <= kMaxPosition, kernel.name,
              ": positions on axis ", i, " do not fit 32 bits");
  uint64_t memory = 0;
  for (const Parameter& parameter : kernel.parameters) {
    check_binding(d, kernel, parameter);
    if (parameter.kind == "threadgroup") memory += d.memory.at(parameter.index);
  }
  MOCK_RULE("threadgroup-memory", memory <= 32768, kernel.name, ": ", memory,
            " bytes of threadgroup memory, Metal has 32768");
}

void run_dispatch(const Dispatch& d) {
  auto* pipeline = checked<MockPipeline>(d.pipeline.get(), "pipeline");
  if (!pipeline->compiled) return;
  std::vector<foundry::Binding> bindings(kSlots);
  for (size_t i = 0; i < kSlots; i++) {
    const Slot& slot = d.slots[i];
    if (slot.bytes) {
      bindings[i].bytes = slot.bytes->data();
      bindings[i].size = slot.size;
    } else if (slot.buffer) {
      auto* buffer = checked<MockBuffer>(slot.buffer.get(), "buffer");
      bindings[i].bytes = buffer->bytes + slot.offset;
      bindings[i].size = static_cast<uint32_t>(std::min<NSUInteger>(buffer->length - slot.offset, UINT32_MAX));
    }
  }
  size_t memories = 0; // those that the kernel declares: lengths of earlier kernels stay set in the encoder
  for (const Parameter& parameter : pipeline->kernel->parameters)
    if (parameter.kind == "threadgroup") memories = std::max<size_t>(memories, parameter.index + 1);
  foundry::LaunchRecord record{bindings, c10::ArrayRef<uint32_t>(d.memory.data(), memories), {}};
  for (int i = 0; i < 3; i++) {
    record.grid.size[i] = static_cast<uint32_t>(axis(d.size, i));
    record.grid.group[i] = static_cast<uint32_t>(axis(d.group, i));
  }
  record.grid.threads = d.threads;
  pipeline->compiled->executor.launch(*pipeline->compiled, record);
}

} // namespace mock

#define MOCK_OPEN MOCK_RULE("encoder-ended", !ended, "an encoder was used after endEncoding")

@implementation MockCompute
+ (id)allocWithZone:(NSZone*)zone {
  MockCompute* made = [super allocWithZone:zone];
  made->current = new mock::Dispatch;
  made->resident = new std::map<id, MTLResourceUsage>;
  made->warm = new std::map<MockPipeline*, bool>;
  made->group = new std::vector<mock::Work>;
  return made;
}
- (void)finish {
  if (!ended && buffer) mock::note("open-encoder", "an encoder was released without endEncoding");
  delete current;
  delete resident;
  delete warm;
  delete group;
  [buffer release];
}
- (id<MTLDevice>)device {
  return mock::device();
}
- (MTLDispatchType)dispatchType {
  return concurrent ? MTLDispatchTypeConcurrent : MTLDispatchTypeSerial;
}
- (NSString*)label {
  return nil;
}
- (void)setLabel:(NSString*)text {
}
- (void)pushDebugGroup:(NSString*)name {
}
- (void)popDebugGroup {
}
- (void)insertDebugSignpost:(NSString*)name {
}

// What a concurrent encoder holds between two barriers runs in reverse order: who needs an order has to ask for it.
- (void)encode:(mock::Work)item {
  if (concurrent)
    group->push_back(std::move(item));
  else
    [buffer add:std::move(item)];
}
- (void)barrier {
  MOCK_OPEN;
  for (; !group->empty(); group->pop_back()) [buffer add:std::move(group->back())];
}
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope {
  mock::trace("barrier");
  [self barrier];
}
- (void)memoryBarrierWithResources:(const id<MTLResource>*)resources count:(NSUInteger)count {
  [self barrier];
}
- (void)endEncoding {
  MOCK_OPEN;
  [self barrier];
  ended = YES;
  buffer->encoder = nil;
}

- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
  MOCK_OPEN;
  current->pipeline = mock::Retained<MockPipeline>(mock::checked<MockPipeline>(state, "pipeline"));
}
- (void)setBuffer:(id<MTLBuffer>)given offset:(NSUInteger)offset atIndex:(NSUInteger)index {
  MOCK_OPEN;
  MockBuffer* own = given ? mock::checked<MockBuffer>(given, "buffer") : nil;
  mock::check_offset(own, offset, index);
  current->slots[index] = {mock::Retained<MockBuffer>(own), offset, nullptr, 0};
}
- (void)setBufferOffset:(NSUInteger)offset atIndex:(NSUInteger)index {
  MOCK_OPEN;
  MOCK_RULE("buffer-index", index < mock::kSlots && current->slots[index].buffer, "setBufferOffset: no buffer at ",
            index);
  mock::check_offset(current->slots[index].buffer.get(), offset, index);
  current->slots[index].offset = offset;
}
- (void)setBuffers:(const id<MTLBuffer>*)buffers offsets:(const NSUInteger*)offsets withRange:(NSRange)range {
  for (NSUInteger i = 0; i < range.length; i++)
    [self setBuffer:buffers[i] offset:offsets[i] atIndex:range.location + i];
}
- (void)setBytes:(const void*)bytes length:(NSUInteger)length atIndex:(NSUInteger)index {
  MOCK_OPEN;
  MOCK_RULE("buffer-index", index < mock::kSlots, "buffer index ", index, ", Metal has 0 to 30");
  MOCK_RULE("bytes-length", length > 0 && length <= 4096, "setBytes of ", length, " bytes, Metal takes 1 to 4096");
  auto copy = std::make_shared<std::vector<std::max_align_t>>((length + sizeof(std::max_align_t) - 1) /
                                                              sizeof(std::max_align_t));
  memcpy(copy->data(), bytes, length);
  current->slots[index] = {{}, 0, std::move(copy), static_cast<uint32_t>(length)};
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index {
  MOCK_OPEN;
  mock::check_memory_length(length, index);
  current->memory[index] = static_cast<uint32_t>(length);
}

- (void)dispatch:(MTLSize)size group:(MTLSize)group_ threads:(BOOL)threads {
  MOCK_OPEN;
  current->size = size;
  current->group = group_;
  current->threads = threads;
  MockPipeline* pipeline = current->pipeline.get();
  if (pipeline && pipeline->indirect && size.width + size.height + size.depth == 0) {
    (*warm)[pipeline] = true; // see the rule icb-warm-up
    return;
  }
  mock::check_dispatch(*current);
  mock::trace("dispatch " + pipeline->kernel->name);
  [self encode:[dispatch = *current] { mock::run_dispatch(dispatch); }];
}
- (void)dispatchThreads:(MTLSize)size threadsPerThreadgroup:(MTLSize)size2 {
  [self dispatch:size group:size2 threads:YES];
}
- (void)dispatchThreadgroups:(MTLSize)size threadsPerThreadgroup:(MTLSize)size2 {
  [self dispatch:size group:size2 threads:NO];
}

- (void)useResource:(id<MTLResource>)resource usage:(MTLResourceUsage)usage {
  [self useResources:&resource count:1 usage:usage];
}
- (void)useResources:(const id<MTLResource>*)resources count:(NSUInteger)count usage:(MTLResourceUsage)usage {
  MOCK_OPEN;
  MOCK_RULE("resource-usage", (usage & (MTLResourceUsageRead | MTLResourceUsageWrite)) != 0,
            "useResources: neither read nor write");
  for (NSUInteger i = 0; i < count; i++) (*resident)[mock::checked<MockObject>(resources[i], "resource")] |= usage;
}
- (void)executeCommandsInBuffer:(id<MTLIndirectCommandBuffer>)commands withRange:(NSRange)range {
  MOCK_OPEN;
  mock::execute_icb(self, commands, range);
}
@end

@implementation MockBlit
- (void)finish {
  if (!ended && buffer) mock::note("open-encoder", "an encoder was released without endEncoding");
  [buffer release];
}
- (id<MTLDevice>)device {
  return mock::device();
}
- (void)endEncoding {
  MOCK_OPEN;
  ended = YES;
  buffer->encoder = nil;
}
- (void)copyFromBuffer:(id<MTLBuffer>)from
          sourceOffset:(NSUInteger)fromOffset
              toBuffer:(id<MTLBuffer>)to
     destinationOffset:(NSUInteger)toOffset
                  size:(NSUInteger)size {
  MOCK_OPEN;
  mock::Retained<MockBuffer> source(mock::checked<MockBuffer>(from, "source buffer")),
      target(mock::checked<MockBuffer>(to, "destination buffer"));
  MOCK_RULE("buffer-offset", fromOffset + size <= source.get()->length && toOffset + size <= target.get()->length,
            "a copy of ", size, " bytes reaches over the end of a buffer");
  mock::trace("blit");
  [buffer add:[=] { memmove(target.get()->bytes + toOffset, source.get()->bytes + fromOffset, size); }];
}
- (void)fillBuffer:(id<MTLBuffer>)given range:(NSRange)range value:(uint8_t)value {
  MOCK_OPEN;
  mock::Retained<MockBuffer> target(mock::checked<MockBuffer>(given, "buffer"));
  MOCK_RULE("buffer-offset", NSMaxRange(range) <= target.get()->length, "a fill reaches over the end of a buffer");
  mock::trace("fill");
  [buffer add:[=] { memset(target.get()->bytes + range.location, value, range.length); }];
}
@end
