#pragma once
#import <Metal/Metal.h>
@interface MPSCommandBuffer : NSObject <MTLCommandBuffer> 
- (void)commitAndContinue;
@end
