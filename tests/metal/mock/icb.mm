#include "icb.h"

#include <cstring>

#include "descriptors.h"
#include "write_guard.h"

namespace mock {
namespace {

constexpr NSUInteger kMostCommands = 16384;
constexpr int64_t kFirstFamilyWithoutWarmUp = 1009;
constexpr MTLIndirectCommandType kGroups = MTLIndirectCommandTypeConcurrentDispatch;
constexpr MTLIndirectCommandType kThreads = MTLIndirectCommandTypeConcurrentDispatchThreads;

struct Command {
  MockPipeline* pipeline = nil;
  std::map<NSUInteger, std::pair<MockBuffer*, NSUInteger>> buffers;
  std::map<NSUInteger, uint32_t> memory;
  MTLSize size{}, group{};
  bool barrier = false, dispatches = false;
};

} // namespace

struct IcbState {
  std::vector<Command> commands;
  MTLIndirectCommandType types = 0;
  NSUInteger buffers = 0, memories = 0; // bind counts
  std::atomic<int> in_flight{0};        // executions that were encoded and have not ended
};

namespace {

// Counts an execution from its encoding to its end, or until its command buffer is given up.
std::shared_ptr<void> in_flight(MockIcb* icb) {
  icb->own->in_flight++;
  return std::shared_ptr<void>(nullptr, [own = icb->own](void*) { own->in_flight--; });
}

Dispatch as_dispatch(const IcbState& icb, const Command& command) {
  Dispatch out;
  out.pipeline = Retained<MockPipeline>(command.pipeline);
  for (const auto& [index, bound] : command.buffers) {
    checked<MockBuffer>(bound.first, "a buffer of an indirect command");
    out.slots[index].buffer = Retained<MockBuffer>(bound.first);
    out.slots[index].offset = bound.second;
  }
  for (const auto& [index, length] : command.memory) out.memory[index] = length;
  out.size = command.size;
  out.group = command.group;
  out.threads = icb.types == kThreads;
  return out;
}

void check_commands(MockCompute* encoder, const IcbState& icb, NSRange range) {
  MOCK_RULE("icb-range", NSMaxRange(range) <= icb.commands.size(), "commands ", range.location, " to ",
            NSMaxRange(range), " of ", icb.commands.size());
  for (NSUInteger i = range.location; i < NSMaxRange(range); i++) {
    const Command& command = icb.commands[i];
    if (!command.dispatches) continue; // was reset: does nothing
    MOCK_RULE("no-pipeline", command.pipeline, "indirect command ", i, " has no pipeline");
    checked<MockPipeline>(command.pipeline, "the pipeline of an indirect command");
    check_dispatch(as_dispatch(icb, command));
    const std::string& name = command.pipeline->kernel->name;
    MOCK_RULE("icb-warm-up", settings().family >= kFirstFamilyWithoutWarmUp || encoder->warm->count(command.pipeline),
              "M1 and M2 fail with an invalid resource unless ", name,
              " was dispatched with an empty grid in the encoder before");
    for (const auto& [index, bound] : command.buffers)
      MOCK_RULE("icb-residency", encoder->resident->count(bound.first), "indirect command ", i, " (", name,
                "): the buffer at index ", index, " was not made resident with useResources");
  }
}

void run_group(const IcbState& icb, size_t begin, size_t end, const WriteGuard& guard) {
  for (size_t i = end; i-- > begin;) {
    const Command& command = icb.commands[i];
    if (!command.dispatches) continue;
    run_dispatch(as_dispatch(icb, command));
    MOCK_RULE("icb-usage", guard.written() == nil, "indirect command ", i, " (", command.pipeline->kernel->name,
              ") writes to a buffer that useResources called read only");
  }
}

void run_commands(MockIcb* given, NSRange range, const std::vector<MockBuffer*>& read_only) {
  const IcbState& icb = *checked<MockIcb>(given, "an indirect command buffer that has yet to run")->own;
  MOCK_RULE("icb-range", NSMaxRange(range) <= icb.commands.size(), "commands ", range.location, " to ",
            NSMaxRange(range), " of ", icb.commands.size());
  for (MockBuffer* buffer : read_only) checked<MockBuffer>(buffer, "a resident buffer");
  WriteGuard guard(read_only);
  for (size_t begin = range.location; begin < NSMaxRange(range);) {
    size_t end = begin + 1;
    while (end < NSMaxRange(range) && !icb.commands[end].barrier) end++;
    run_group(icb, begin, end, guard);
    begin = end;
  }
}

std::vector<MockBuffer*> read_only_buffers(MockCompute* encoder) {
  std::vector<MockBuffer*> out;
  for (const auto& [resource, usage] : *encoder->resident)
    if (!(usage & MTLResourceUsageWrite) && [resource isKindOfClass:[MockBuffer class]])
      out.push_back(static_cast<MockBuffer*>(resource));
  return out;
}

} // namespace

MockIcb* make_icb(MTLIndirectCommandBufferDescriptor* descriptor, NSUInteger count) {
  const auto& given = state<MTLIndirectCommandBufferDescriptorState>(descriptor);
  MOCK_RULE("icb-dispatch-kind", given.commandTypes == kGroups || given.commandTypes == kThreads,
            "commandTypes has to be one kind of concurrent dispatch, not ", static_cast<int>(given.commandTypes));
  MOCK_RULE("icb-inherit", !given.inheritBuffers && !given.inheritPipelineState,
            "inheritBuffers and inheritPipelineState have to be switched off");
  MOCK_RULE("icb-bind-count", given.maxKernelBufferBindCount > 0 && given.maxKernelBufferBindCount <= kSlots,
            "maxKernelBufferBindCount ", given.maxKernelBufferBindCount, ", Metal takes 1 to 31");
  MOCK_RULE("icb-range", count > 0 && count <= kMostCommands, "an indirect command buffer of ", count, " commands");
  MockIcb* icb = [MockIcb alloc];
  icb->own = new IcbState;
  icb->own->commands.resize(count);
  icb->own->types = given.commandTypes;
  icb->own->buffers = given.maxKernelBufferBindCount;
  icb->own->memories = given.maxKernelThreadgroupMemoryBindCount;
  return icb;
}

void execute_icb(MockCompute* encoder, id<MTLIndirectCommandBuffer> commands, NSRange range) {
  auto* icb = checked<MockIcb>(commands, "indirect command buffer");
  check_commands(encoder, *icb->own, range);
  trace(c10::str("icb x", range.length));
  [encoder encode:[icb, range, token = in_flight(icb), read_only = read_only_buffers(encoder)] {
    run_commands(icb, range, read_only);
  }];
}

namespace {

IcbState& modifiable(MockIcb* icb) {
  IcbState& own = *checked<MockIcb>(icb, "indirect command buffer")->own;
  MOCK_RULE("icb-in-flight", own.in_flight == 0, "an indirect command buffer is changed before the GPU has run it");
  return own;
}

Command& modifiable(MockIcbCommand* command) { return modifiable(command->icb).commands.at(command->index); }

void set_dispatch(MockIcbCommand* given, MTLSize size, MTLSize group, MTLIndirectCommandType kind) {
  Command& command = modifiable(given);
  MOCK_RULE("icb-dispatch-kind", given->icb->own->types == kind,
            "the indirect command buffer was made for the other kind of dispatch");
  command.size = size;
  command.group = group;
  command.dispatches = true;
}

} // namespace
} // namespace mock

@implementation MockIcb
- (void)finish {
  if (own->in_flight > 0)
    mock::note("freed-object", "an indirect command buffer was released before the GPU has run it");
  // stays in memory, as this object does: executions that were encoded point to it
  own->commands.clear();
  [super finish];
}
- (id<MTLDevice>)device {
  return mock::device();
}
- (NSUInteger)size {
  return own->commands.size();
}
- (void)resetWithRange:(NSRange)range {
  auto& commands = mock::modifiable(self).commands;
  MOCK_RULE("icb-range", NSMaxRange(range) <= commands.size(), "reset reaches over the end");
  for (NSUInteger i = range.location; i < NSMaxRange(range); i++) commands[i] = {};
}
- (id<MTLIndirectComputeCommand>)indirectComputeCommandAtIndex:(NSUInteger)index {
  MOCK_RULE("freed-object", !dead, "an indirect command buffer was used after its last release");
  MOCK_RULE("icb-range", index < own->commands.size(), "command ", index, " of ", own->commands.size());
  MockIcbCommand* command = [[MockIcbCommand alloc] autorelease];
  command->icb = self;
  command->index = index;
  return command;
}
@end

@implementation MockIcbCommand
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
  auto* pipeline = mock::checked<MockPipeline>(state, "pipeline");
  MOCK_RULE("icb-pipeline", pipeline->indirect, pipeline->kernel->name,
            ": the pipeline was made without supportIndirectCommandBuffers");
  mock::modifiable(self).pipeline = pipeline;
}
- (void)setKernelBuffer:(id<MTLBuffer>)given offset:(NSUInteger)offset atIndex:(NSUInteger)index_ {
  auto* buffer = mock::checked<MockBuffer>(given, "buffer");
  mock::check_offset(buffer, offset, index_);
  auto& command = mock::modifiable(self);
  MOCK_RULE("icb-bind-count", index_ < icb->own->buffers, "buffer index ", index_, ", maxKernelBufferBindCount is ",
            icb->own->buffers);
  command.buffers[index_] = {buffer, offset};
}
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index_ {
  mock::check_memory_length(length, index_);
  auto& command = mock::modifiable(self);
  MOCK_RULE("icb-bind-count", index_ < icb->own->memories, "threadgroup memory index ", index_,
            ", maxKernelThreadgroupMemoryBindCount is ", icb->own->memories);
  command.memory[index_] = static_cast<uint32_t>(length);
}
- (void)concurrentDispatchThreadgroups:(MTLSize)size threadsPerThreadgroup:(MTLSize)group {
  mock::set_dispatch(self, size, group, mock::kGroups);
}
- (void)concurrentDispatchThreads:(MTLSize)size threadsPerThreadgroup:(MTLSize)group {
  mock::set_dispatch(self, size, group, mock::kThreads);
}
- (void)setBarrier {
  mock::modifiable(self).barrier = true;
}
- (void)clearBarrier {
  mock::modifiable(self).barrier = false;
}
- (void)reset {
  mock::modifiable(self) = {};
}
@end
