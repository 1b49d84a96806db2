// Indirect command buffers. Nothing that they name is retained, and between two barriers their commands run in reverse
// order, so that whoever forgets a barrier or a tensor sees it.
#pragma once

#include "commands.h"

namespace mock {
struct IcbState;
}

@interface MockIcb : MockLabelled <MTLIndirectCommandBuffer> {
@public
  mock::IcbState* own;
}
@end

@interface MockIcbCommand : MockObject <MTLIndirectComputeCommand> {
@public
  MockIcb* icb; // not retained
  NSUInteger index;
}
@end

namespace mock {

MockIcb* make_icb(MTLIndirectCommandBufferDescriptor* descriptor, NSUInteger count);
void execute_icb(MockCompute* encoder, id<MTLIndirectCommandBuffer> commands, NSRange range);

} // namespace mock
