// What torch's MPS headers use of MetalPerformanceShaders.
#pragma once
#import <Metal/Metal.h>
API_AVAILABLE(macos(10.15))
@interface MPSCommandBuffer : NSObject <MTLCommandBuffer>
- (void)commitAndContinue;
@end
