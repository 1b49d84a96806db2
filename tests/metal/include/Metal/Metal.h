#pragma once
#import <Foundation/Foundation.h>
#include <dispatch/dispatch.h>
#ifndef API_AVAILABLE // checked when compiling for macOS only
#define API_AVAILABLE(...)
#endif
typedef double CFTimeInterval;
typedef struct { NSUInteger width, height, depth; } MTLSize;
static inline MTLSize MTLSizeMake(NSUInteger w, NSUInteger h, NSUInteger d) { MTLSize s = {w, h, d}; return s; }
typedef NS_ENUM(NSUInteger, MTLDataType) { MTLDataTypeFloat = 3, MTLDataTypeHalf=16, MTLDataTypeInt = 29, MTLDataTypeUInt = 33, MTLDataTypeShort=37, MTLDataTypeUShort=41, MTLDataTypeChar=45, MTLDataTypeUChar=49, MTLDataTypeBool = 53, MTLDataTypeLong=81, MTLDataTypeULong=85, MTLDataTypeBFloat=121 };
typedef NS_OPTIONS(NSUInteger, MTLResourceOptions) { MTLResourceStorageModeShared = 0, MTLResourceStorageModePrivate = 2 << 4 };
typedef NS_ENUM(NSUInteger, MTLStorageMode) { MTLStorageModeShared = 0 };
typedef NS_OPTIONS(NSUInteger, MTLResourceUsage) { MTLResourceUsageRead = 1, MTLResourceUsageWrite = 2 };
typedef NS_OPTIONS(NSUInteger, MTLPipelineOption) { MTLPipelineOptionNone = 0, MTLPipelineOptionFailOnBinaryArchiveMiss = 1 << 2 };
typedef NS_OPTIONS(NSUInteger, MTLBarrierScope) { MTLBarrierScopeBuffers = 1 };
typedef NS_ENUM(NSUInteger, MTLLanguageVersion) { MTLLanguageVersion3_1 = (3 << 16) + 1, MTLLanguageVersion3_2 API_AVAILABLE(macos(15.0)) = (3 << 16) + 2, MTLLanguageVersion4_0 API_AVAILABLE(macos(26.0)) = 4 << 16 };
typedef NS_ENUM(NSInteger, MTLMathMode) { MTLMathModeSafe, MTLMathModeRelaxed, MTLMathModeFast };
typedef NS_OPTIONS(NSUInteger, MTLIndirectCommandType) { MTLIndirectCommandTypeConcurrentDispatch = 1 << 5, MTLIndirectCommandTypeConcurrentDispatchThreads = 1 << 6 };
typedef NS_ENUM(NSUInteger, MTLDispatchType) { MTLDispatchTypeSerial, MTLDispatchTypeConcurrent };
typedef NS_ENUM(NSUInteger, MTLFunctionType) { MTLFunctionTypeKernel = 3 };
typedef NS_ENUM(NSUInteger, MTLCommandBufferStatus) { MTLCommandBufferStatusNotEnqueued, MTLCommandBufferStatusEnqueued, MTLCommandBufferStatusCommitted, MTLCommandBufferStatusScheduled, MTLCommandBufferStatusCompleted, MTLCommandBufferStatusError };
typedef NS_ENUM(NSInteger, MTLGPUFamily) { MTLGPUFamilyApple1 = 1001, MTLGPUFamilyApple7 = 1007, MTLGPUFamilyMetal3 = 5001 };
typedef struct { uint32_t location, length; } MTLIndirectCommandBufferExecutionRange;
@protocol MTLDevice; @protocol MTLCommandBuffer; @protocol MTLCommandQueue;
typedef NS_ENUM(NSInteger, MTLBindingType) { MTLBindingTypeBuffer = 0, MTLBindingTypeThreadgroupMemory = 1 };
@protocol MTLBinding <NSObject>
@property (readonly) NSString* name;
@property (readonly) MTLBindingType type;
@property (readonly) NSUInteger index;
@property (readonly, getter=isUsed) BOOL used;
@end
@interface MTLComputePipelineReflection : NSObject
@property (readonly) NSArray<id<MTLBinding>>* bindings;
@end
typedef MTLComputePipelineReflection* MTLAutoreleasedComputePipelineReflection;
@protocol MTLResource <NSObject>
@property (nullable, copy, atomic) NSString* label;
@property (readonly) MTLStorageMode storageMode;
@end
@protocol MTLBuffer <MTLResource>
- (void*)contents; 
@property (readonly) NSUInteger length; @property (readonly) uint64_t gpuAddress;
@end
@protocol MTLFunction <NSObject> @property (readonly) NSString* name; @end
@protocol MTLComputePipelineState <NSObject>
@property (readonly) NSUInteger maxTotalThreadsPerThreadgroup, threadExecutionWidth, staticThreadgroupMemoryLength; @property (readonly) BOOL supportIndirectCommandBuffers;
@end
@interface MTLFunctionConstantValues : NSObject
- (void)setConstantValue:(const void*)v type:(MTLDataType)t atIndex:(NSUInteger)i;
- (void)reset;
@end
@interface MTLCompileOptions : NSObject
@property (readwrite, nonatomic) BOOL fastMathEnabled;
@property (readwrite, nonatomic) MTLMathMode mathMode API_AVAILABLE(macos(15.0));
@property (readwrite, nonatomic) MTLLanguageVersion languageVersion;
@property (nonatomic, copy) NSDictionary* preprocessorMacros;
@property (readwrite, nonatomic) BOOL preserveInvariance;
@end
@interface MTLComputePipelineDescriptor : NSObject
@property (nonatomic, retain) id<MTLFunction> computeFunction;
@property (nonatomic, copy) NSString* label;
@property (nonatomic, copy) NSArray* binaryArchives;
@property (nonatomic) BOOL supportIndirectCommandBuffers, threadGroupSizeIsMultipleOfThreadExecutionWidth;
@property (nonatomic) NSUInteger maxTotalThreadsPerThreadgroup;
@end
@protocol MTLBinaryArchive <NSObject>
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor*)d error:(NSError**)e;
- (BOOL)serializeToURL:(NSURL*)u error:(NSError**)e;
@end
@interface MTLBinaryArchiveDescriptor : NSObject
@property (nonatomic, copy) NSURL* url;
@end
@protocol MTLLibrary <NSObject>
@property (readonly) id<MTLDevice> device; @property (readonly) NSArray<NSString*>* functionNames;
- (id<MTLFunction>)newFunctionWithName:(NSString*)n;
- (id<MTLFunction>)newFunctionWithName:(NSString*)n constantValues:(MTLFunctionConstantValues*)v error:(NSError**)e;
@end
@protocol MTLIndirectComputeCommand <NSObject>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)p;
- (void)setKernelBuffer:(id<MTLBuffer>)b offset:(NSUInteger)o atIndex:(NSUInteger)i;
- (void)concurrentDispatchThreadgroups:(MTLSize)g threadsPerThreadgroup:(MTLSize)t;
- (void)concurrentDispatchThreads:(MTLSize)g threadsPerThreadgroup:(MTLSize)t;
- (void)setBarrier; - (void)clearBarrier; - (void)reset;
- (void)setThreadgroupMemoryLength:(NSUInteger)l atIndex:(NSUInteger)i;
@end
@interface MTLIndirectCommandBufferDescriptor : NSObject
@property (nonatomic) MTLIndirectCommandType commandTypes;
@property (nonatomic) BOOL inheritBuffers, inheritPipelineState;
@property (nonatomic) NSUInteger maxKernelBufferBindCount, maxKernelThreadgroupMemoryBindCount;
@end
@protocol MTLIndirectCommandBuffer <MTLResource>
@property (readonly) NSUInteger size; - (void)resetWithRange:(NSRange)r;
- (id<MTLIndirectComputeCommand>)indirectComputeCommandAtIndex:(NSUInteger)i;
@end
@protocol MTLCommandEncoder <NSObject> - (void)endEncoding; @end
@protocol MTLComputeCommandEncoder <MTLCommandEncoder>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)p;
- (void)setBuffer:(id<MTLBuffer>)b offset:(NSUInteger)o atIndex:(NSUInteger)i;
- (void)setBytes:(const void*)p length:(NSUInteger)n atIndex:(NSUInteger)i;
- (void)setThreadgroupMemoryLength:(NSUInteger)l atIndex:(NSUInteger)i;
- (void)dispatchThreads:(MTLSize)g threadsPerThreadgroup:(MTLSize)t;
- (void)dispatchThreadgroups:(MTLSize)g threadsPerThreadgroup:(MTLSize)t;
- (void)useResource:(id<MTLResource>)r usage:(MTLResourceUsage)u;
- (void)useResources:(const id<MTLResource>[])r count:(NSUInteger)n usage:(MTLResourceUsage)u;
- (void)executeCommandsInBuffer:(id<MTLIndirectCommandBuffer>)b withRange:(NSRange)r;
- (void)executeCommandsInBuffer:(id<MTLIndirectCommandBuffer>)b indirectBuffer:(id<MTLBuffer>)rb indirectBufferOffset:(NSUInteger)o;
- (void)memoryBarrierWithScope:(MTLBarrierScope)s;
@end
@protocol MTLBlitCommandEncoder <MTLCommandEncoder>
- (void)copyFromBuffer:(id<MTLBuffer>)s sourceOffset:(NSUInteger)so toBuffer:(id<MTLBuffer>)d destinationOffset:(NSUInteger)dof size:(NSUInteger)n;
- (void)fillBuffer:(id<MTLBuffer>)s range:(NSRange)r value:(uint8_t)v;
@end
typedef void (^MTLCommandBufferHandler)(id<MTLCommandBuffer>);
@protocol MTLCommandBuffer <NSObject>
- (id<MTLComputeCommandEncoder>)computeCommandEncoder; - (id<MTLBlitCommandEncoder>)blitCommandEncoder;
- (id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)t;
- (void)commit; - (void)waitUntilCompleted; - (void)addCompletedHandler:(MTLCommandBufferHandler)h;
@property (readonly) CFTimeInterval GPUStartTime, GPUEndTime; @property (readonly) MTLCommandBufferStatus status; @property (readonly) NSError* error;
@end
@protocol MTLCommandQueue <NSObject> - (id<MTLCommandBuffer>)commandBuffer; @end
@protocol MTLHeap <NSObject> @end
@protocol MTLSharedEvent <NSObject> @end
@class MTLCaptureManager, MTLSharedEventListener;
@protocol MTLDevice <NSObject>
@property (readonly) NSString* name; @property (readonly) NSUInteger maxBufferLength, maxThreadgroupMemoryLength;
@property (readonly) uint64_t recommendedMaxWorkingSetSize, registryID; @property (readonly) BOOL hasUnifiedMemory;
- (BOOL)supportsFamily:(MTLGPUFamily)f;
- (id<MTLLibrary>)newLibraryWithSource:(NSString*)s options:(MTLCompileOptions*)o error:(NSError**)e;
- (id<MTLLibrary>)newLibraryWithData:(dispatch_data_t)d error:(NSError**)e;
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)n options:(MTLResourceOptions)o;
- (id<MTLBuffer>)newBufferWithBytes:(const void*)p length:(NSUInteger)n options:(MTLResourceOptions)o;
- (id<MTLComputePipelineState>)newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor*)d options:(MTLPipelineOption)o reflection:(MTLAutoreleasedComputePipelineReflection*)r error:(NSError**)e;
- (id<MTLIndirectCommandBuffer>)newIndirectCommandBufferWithDescriptor:(MTLIndirectCommandBufferDescriptor*)d maxCommandCount:(NSUInteger)n options:(MTLResourceOptions)o;
- (id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor*)d error:(NSError**)e;
- (id<MTLCommandQueue>)newCommandQueue;
@end
#ifdef __cplusplus
extern "C"
#endif
id<MTLDevice> MTLCreateSystemDefaultDevice(void);
