// The part of Metal that the Metal executor and torch's MPS headers use, written down from its documented interface, with
// Apple's types, nullability and availability (macOS 14, and what came later where it is used). Serves the mock on
// Linux, where availability means nothing, and `make check-macos`. What is not here can't be called there: add it with
// its true signature, and with its availability when it is newer than macOS 14.
#pragma once
#import <Foundation/Foundation.h>
#include <dispatch/dispatch.h>
#include <os/availability.h>

#ifdef __cplusplus
#define MTL_EXTERN extern "C"
#else
#define MTL_EXTERN extern
#endif
#ifndef NS_RETURNS_RETAINED
#define NS_RETURNS_RETAINED
#endif

NS_ASSUME_NONNULL_BEGIN

@protocol MTLBinaryArchive, MTLBlitCommandEncoder, MTLBuffer, MTLCommandBuffer, MTLCommandQueue;
@protocol MTLComputeCommandEncoder, MTLDevice, MTLHeap, MTLIndirectCommandBuffer;
@class MTLCaptureManager, MTLSharedEventListener;

typedef double CFTimeInterval;

// ---- plain values

typedef struct {
  NSUInteger width, height, depth;
} MTLSize;
static inline MTLSize MTLSizeMake(NSUInteger width, NSUInteger height, NSUInteger depth) {
  MTLSize size = {width, height, depth};
  return size;
}

typedef NS_ENUM(NSUInteger, MTLDataType) {
  MTLDataTypeNone = 0,
  MTLDataTypeFloat = 3,
  MTLDataTypeHalf = 16,
  MTLDataTypeInt = 29,
  MTLDataTypeUInt = 33,
  MTLDataTypeShort = 37,
  MTLDataTypeUShort = 41,
  MTLDataTypeChar = 45,
  MTLDataTypeUChar = 49,
  MTLDataTypeBool = 53,
  MTLDataTypeLong API_AVAILABLE(macos(12.0)) = 81,
  MTLDataTypeULong API_AVAILABLE(macos(12.0)) = 85,
  MTLDataTypeBFloat API_AVAILABLE(macos(14.0)) = 121,
} API_AVAILABLE(macos(10.11));

typedef NS_ENUM(NSUInteger, MTLStorageMode) {
  MTLStorageModeShared = 0,
  MTLStorageModeManaged = 1,
  MTLStorageModePrivate = 2,
  MTLStorageModeMemoryless API_AVAILABLE(macos(11.0)) = 3,
} API_AVAILABLE(macos(10.11));

typedef NS_OPTIONS(NSUInteger, MTLResourceOptions) {
  MTLResourceStorageModeShared = MTLStorageModeShared << 4,
  MTLResourceStorageModePrivate = MTLStorageModePrivate << 4,
  MTLResourceHazardTrackingModeUntracked API_AVAILABLE(macos(10.13)) = 1 << 8,
  MTLResourceHazardTrackingModeTracked API_AVAILABLE(macos(10.15)) = 2 << 8,
} API_AVAILABLE(macos(10.11));

typedef NS_OPTIONS(NSUInteger, MTLResourceUsage) {
  MTLResourceUsageRead = 1 << 0,
  MTLResourceUsageWrite = 1 << 1,
} API_AVAILABLE(macos(10.13));

typedef NS_OPTIONS(NSUInteger, MTLBarrierScope) {
  MTLBarrierScopeBuffers = 1 << 0,
} API_AVAILABLE(macos(10.14));

typedef NS_ENUM(NSUInteger, MTLDispatchType) {
  MTLDispatchTypeSerial,
  MTLDispatchTypeConcurrent,
} API_AVAILABLE(macos(10.14));

// The name of bit 0, which asks for reflection, differs between SDKs.
typedef NS_OPTIONS(NSUInteger, MTLPipelineOption) {
  MTLPipelineOptionNone = 0,
  MTLPipelineOptionFailOnBinaryArchiveMiss API_AVAILABLE(macos(11.0)) = 1 << 2,
} API_AVAILABLE(macos(10.11));

typedef NS_ENUM(NSUInteger, MTLLanguageVersion) {
  MTLLanguageVersion3_0 API_AVAILABLE(macos(13.0)) = (3 << 16) + 0,
  MTLLanguageVersion3_1 API_AVAILABLE(macos(14.0)) = (3 << 16) + 1,
  MTLLanguageVersion3_2 API_AVAILABLE(macos(15.0)) = (3 << 16) + 2,
  MTLLanguageVersion4_0 API_AVAILABLE(macos(26.0)) = (4 << 16) + 0,
} API_AVAILABLE(macos(10.11));

typedef NS_ENUM(NSInteger, MTLMathMode) {
  MTLMathModeSafe = 0,
  MTLMathModeRelaxed = 1,
  MTLMathModeFast = 2,
} API_AVAILABLE(macos(15.0));

typedef NS_ENUM(NSInteger, MTLMathFloatingPointFunctions) {
  MTLMathFloatingPointFunctionsFast = 0,
  MTLMathFloatingPointFunctionsPrecise = 1,
} API_AVAILABLE(macos(15.0));

typedef NS_OPTIONS(NSUInteger, MTLIndirectCommandType) {
  MTLIndirectCommandTypeConcurrentDispatch API_AVAILABLE(macos(11.0)) = (1 << 5),
  MTLIndirectCommandTypeConcurrentDispatchThreads API_AVAILABLE(macos(11.0)) = (1 << 6),
} API_AVAILABLE(macos(10.14));

typedef NS_ENUM(NSUInteger, MTLFunctionType) {
  MTLFunctionTypeVertex = 1,
  MTLFunctionTypeFragment = 2,
  MTLFunctionTypeKernel = 3,
} API_AVAILABLE(macos(10.11));

typedef NS_ENUM(NSInteger, MTLBindingType) {
  MTLBindingTypeBuffer = 0,
  MTLBindingTypeThreadgroupMemory = 1,
} API_AVAILABLE(macos(11.0));

typedef NS_ENUM(NSUInteger, MTLCommandBufferStatus) {
  MTLCommandBufferStatusNotEnqueued = 0,
  MTLCommandBufferStatusEnqueued = 1,
  MTLCommandBufferStatusCommitted = 2,
  MTLCommandBufferStatusScheduled = 3,
  MTLCommandBufferStatusCompleted = 4,
  MTLCommandBufferStatusError = 5,
} API_AVAILABLE(macos(10.11));

typedef NS_ENUM(NSInteger, MTLGPUFamily) {
  MTLGPUFamilyApple1 = 1001,
  MTLGPUFamilyApple7 = 1007,
  MTLGPUFamilyApple8 = 1008,
  MTLGPUFamilyApple9 = 1009,
  MTLGPUFamilyMetal3 API_AVAILABLE(macos(13.0)) = 5001,
} API_AVAILABLE(macos(10.15));

// ---- resources

API_AVAILABLE(macos(10.11))
@protocol MTLResource <NSObject>
@property(nullable, copy, atomic) NSString* label;
@property(readonly) id<MTLDevice> device;
@property(readonly) MTLStorageMode storageMode API_AVAILABLE(macos(10.11));
@property(readonly) MTLResourceOptions resourceOptions API_AVAILABLE(macos(10.15));
@property(readonly) NSUInteger allocatedSize API_AVAILABLE(macos(10.13));
@end

API_AVAILABLE(macos(10.11))
@protocol MTLBuffer <MTLResource>
@property(readonly) NSUInteger length;
- (void*)contents;
@property(readonly) uint64_t gpuAddress API_AVAILABLE(macos(13.0));
@end

API_AVAILABLE(macos(10.13))
@protocol MTLHeap <NSObject>
@end
API_AVAILABLE(macos(10.14))
@protocol MTLEvent <NSObject>
@end
API_AVAILABLE(macos(10.14))
@protocol MTLSharedEvent <MTLEvent>
@end

// ---- from source to pipeline

API_AVAILABLE(macos(10.11))
@interface MTLCompileOptions : NSObject <NSCopying>
@property(nullable, readwrite, copy, nonatomic) NSDictionary<NSString*, NSObject*>* preprocessorMacros;
@property(readwrite, nonatomic) BOOL fastMathEnabled
    API_DEPRECATED("Use mathMode instead", macos(10.11, 15.0));
@property(readwrite, nonatomic) MTLMathMode mathMode API_AVAILABLE(macos(15.0));
@property(readwrite, nonatomic)
    MTLMathFloatingPointFunctions mathFloatingPointFunctions API_AVAILABLE(macos(15.0));
@property(readwrite, nonatomic) MTLLanguageVersion languageVersion API_AVAILABLE(macos(10.11));
@property(readwrite, nonatomic) BOOL preserveInvariance API_AVAILABLE(macos(11.0));
@end

API_AVAILABLE(macos(10.12))
@interface MTLFunctionConstantValues : NSObject <NSCopying>
- (void)setConstantValue:(const void*)value type:(MTLDataType)type atIndex:(NSUInteger)index;
- (void)reset;
@end

API_AVAILABLE(macos(10.11))
@protocol MTLFunction <NSObject>
@property(nullable, copy, atomic) NSString* label API_AVAILABLE(macos(10.12));
@property(readonly) id<MTLDevice> device;
@property(readonly) MTLFunctionType functionType;
@property(readonly) NSString* name;
@end

API_AVAILABLE(macos(10.11))
@protocol MTLLibrary <NSObject>
@property(nullable, copy, atomic) NSString* label;
@property(readonly) id<MTLDevice> device;
- (nullable id<MTLFunction>)newFunctionWithName:(NSString*)functionName;
- (nullable id<MTLFunction>)newFunctionWithName:(NSString*)name
                                 constantValues:(MTLFunctionConstantValues*)constantValues
                                          error:(__autoreleasing NSError**)error API_AVAILABLE(macos(10.12));
@property(readonly) NSArray<NSString*>* functionNames;
@end

API_AVAILABLE(macos(13.0))
@protocol MTLBinding <NSObject>
@property(readonly) NSString* name;
@property(readonly) MTLBindingType type;
@property(readonly) NSUInteger index;
@property(readonly, getter=isUsed) BOOL used;
@property(readonly, getter=isArgument) BOOL argument;
@end

API_AVAILABLE(macos(10.11))
@interface MTLComputePipelineReflection : NSObject
@property(nonnull, readonly) NSArray<id<MTLBinding>>* bindings API_AVAILABLE(macos(13.0));
@end
typedef __autoreleasing MTLComputePipelineReflection* _Nullable MTLAutoreleasedComputePipelineReflection;

API_AVAILABLE(macos(10.11))
@interface MTLComputePipelineDescriptor : NSObject <NSCopying>
@property(nullable, copy, nonatomic) NSString* label;
@property(nullable, readwrite, nonatomic, strong) id<MTLFunction> computeFunction;
@property(readwrite, nonatomic) BOOL threadGroupSizeIsMultipleOfThreadExecutionWidth;
@property(readwrite, nonatomic) NSUInteger maxTotalThreadsPerThreadgroup API_AVAILABLE(macos(10.14));
@property(readwrite, nonatomic) BOOL supportIndirectCommandBuffers API_AVAILABLE(macos(11.0));
@property(readwrite, nullable, nonatomic, copy) NSArray<id<MTLBinaryArchive>>* binaryArchives API_AVAILABLE(macos(11.0));
@end

API_AVAILABLE(macos(10.11))
@protocol MTLComputePipelineState <NSObject>
@property(nullable, readonly) NSString* label API_AVAILABLE(macos(10.13));
@property(readonly) id<MTLDevice> device;
@property(readonly) NSUInteger maxTotalThreadsPerThreadgroup;
@property(readonly) NSUInteger threadExecutionWidth;
@property(readonly) NSUInteger staticThreadgroupMemoryLength API_AVAILABLE(macos(10.13));
@property(readonly) BOOL supportIndirectCommandBuffers API_AVAILABLE(macos(11.0));
@end

API_AVAILABLE(macos(11.0))
@interface MTLBinaryArchiveDescriptor : NSObject <NSCopying>
@property(readwrite, nullable, nonatomic, copy) NSURL* url;
@end

API_AVAILABLE(macos(11.0))
@protocol MTLBinaryArchive <NSObject>
@property(nullable, copy, atomic) NSString* label;
@property(readonly) id<MTLDevice> device;
- (BOOL)addComputePipelineFunctionsWithDescriptor:(MTLComputePipelineDescriptor*)descriptor error:(NSError**)error;
- (BOOL)serializeToURL:(NSURL*)url error:(NSError**)error;
@end

// ---- encoding

API_AVAILABLE(macos(11.0))
@protocol MTLIndirectComputeCommand <NSObject>
- (void)setComputePipelineState:(id<MTLComputePipelineState>)pipelineState API_AVAILABLE(macos(11.0));
- (void)setKernelBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)concurrentDispatchThreadgroups:(MTLSize)threadgroupsPerGrid
                 threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup;
- (void)concurrentDispatchThreads:(MTLSize)threadsPerGrid threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup;
- (void)setBarrier;
- (void)clearBarrier;
- (void)reset;
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index;
@end

API_AVAILABLE(macos(10.14))
@interface MTLIndirectCommandBufferDescriptor : NSObject <NSCopying>
@property(readwrite, nonatomic) MTLIndirectCommandType commandTypes;
@property(readwrite, nonatomic) BOOL inheritPipelineState API_AVAILABLE(macos(10.14));
@property(readwrite, nonatomic) BOOL inheritBuffers;
@property(readwrite, nonatomic) NSUInteger maxKernelBufferBindCount API_AVAILABLE(macos(11.0));
@property(readwrite, nonatomic) NSUInteger maxKernelThreadgroupMemoryBindCount API_AVAILABLE(macos(14.0));
@end

API_AVAILABLE(macos(10.14))
@protocol MTLIndirectCommandBuffer <MTLResource>
@property(readonly) NSUInteger size;
- (void)resetWithRange:(NSRange)range;
- (id<MTLIndirectComputeCommand>)indirectComputeCommandAtIndex:(NSUInteger)commandIndex API_AVAILABLE(macos(11.0));
@end

API_AVAILABLE(macos(10.11))
@protocol MTLCommandEncoder <NSObject>
@property(readonly) id<MTLDevice> device;
@property(nullable, copy, atomic) NSString* label;
- (void)endEncoding;
- (void)insertDebugSignpost:(NSString*)string;
- (void)pushDebugGroup:(NSString*)string;
- (void)popDebugGroup;
@end

API_AVAILABLE(macos(10.11))
@protocol MTLComputeCommandEncoder <MTLCommandEncoder>
@property(readonly) MTLDispatchType dispatchType API_AVAILABLE(macos(10.14));
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state;
- (void)setBytes:(const void*)bytes
          length:(NSUInteger)length
         atIndex:(NSUInteger)index API_AVAILABLE(macos(10.11));
- (void)setBuffer:(nullable id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index;
- (void)setBufferOffset:(NSUInteger)offset atIndex:(NSUInteger)index API_AVAILABLE(macos(10.11));
- (void)setThreadgroupMemoryLength:(NSUInteger)length atIndex:(NSUInteger)index;
- (void)dispatchThreadgroups:(MTLSize)threadgroupsPerGrid threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup;
- (void)dispatchThreads:(MTLSize)threadsPerGrid
    threadsPerThreadgroup:(MTLSize)threadsPerThreadgroup API_AVAILABLE(macos(10.13));
- (void)useResource:(id<MTLResource>)resource usage:(MTLResourceUsage)usage API_AVAILABLE(macos(10.13));
- (void)useResources:(const id<MTLResource> _Nonnull[_Nonnull])resources
               count:(NSUInteger)count
               usage:(MTLResourceUsage)usage API_AVAILABLE(macos(10.13));
- (void)executeCommandsInBuffer:(id<MTLIndirectCommandBuffer>)indirectCommandBuffer
                      withRange:(NSRange)executionRange API_AVAILABLE(macos(11.0));
- (void)memoryBarrierWithScope:(MTLBarrierScope)scope API_AVAILABLE(macos(10.14));
- (void)memoryBarrierWithResources:(const id<MTLResource> _Nonnull[_Nonnull])resources
                             count:(NSUInteger)count API_AVAILABLE(macos(10.14));
@end

API_AVAILABLE(macos(10.11))
@protocol MTLBlitCommandEncoder <MTLCommandEncoder>
- (void)copyFromBuffer:(id<MTLBuffer>)sourceBuffer
           sourceOffset:(NSUInteger)sourceOffset
               toBuffer:(id<MTLBuffer>)destinationBuffer
      destinationOffset:(NSUInteger)destinationOffset
                   size:(NSUInteger)size;
- (void)fillBuffer:(id<MTLBuffer>)buffer range:(NSRange)range value:(uint8_t)value;
@end

typedef void (^MTLCommandBufferHandler)(id<MTLCommandBuffer>);

API_AVAILABLE(macos(10.11))
@protocol MTLCommandBuffer <NSObject>
@property(readonly) id<MTLDevice> device;
@property(readonly) id<MTLCommandQueue> commandQueue;
@property(nullable, copy, atomic) NSString* label;
@property(readonly) CFTimeInterval GPUStartTime API_AVAILABLE(macos(10.15));
@property(readonly) CFTimeInterval GPUEndTime API_AVAILABLE(macos(10.15));
- (void)enqueue;
- (void)commit;
- (void)addScheduledHandler:(MTLCommandBufferHandler)block;
- (void)waitUntilScheduled;
- (void)addCompletedHandler:(MTLCommandBufferHandler)block;
- (void)waitUntilCompleted;
@property(readonly) MTLCommandBufferStatus status;
@property(nullable, readonly) NSError* error;
- (nullable id<MTLBlitCommandEncoder>)blitCommandEncoder;
- (nullable id<MTLComputeCommandEncoder>)computeCommandEncoder;
- (nullable id<MTLComputeCommandEncoder>)computeCommandEncoderWithDispatchType:(MTLDispatchType)dispatchType
    API_AVAILABLE(macos(10.14));
@end

API_AVAILABLE(macos(10.11))
@protocol MTLCommandQueue <NSObject>
@property(nullable, copy, atomic) NSString* label;
@property(readonly) id<MTLDevice> device;
- (nullable id<MTLCommandBuffer>)commandBuffer;
@end

// ---- reading files

typedef NS_ENUM(NSInteger, MTLIOCommandQueueType) {
  MTLIOCommandQueueTypeConcurrent = 0,
  MTLIOCommandQueueTypeSerial = 1,
} API_AVAILABLE(macos(13.0));

typedef NS_ENUM(NSInteger, MTLIOStatus) {
  MTLIOStatusPending = 0,
  MTLIOStatusCancelled = 1,
  MTLIOStatusError = 2,
  MTLIOStatusComplete = 3,
} API_AVAILABLE(macos(13.0));

API_AVAILABLE(macos(13.0))
@interface MTLIOCommandQueueDescriptor : NSObject <NSCopying>
@property(nonatomic, readwrite) MTLIOCommandQueueType type;
@end

API_AVAILABLE(macos(13.0))
@protocol MTLIOFileHandle <NSObject>
@property(nullable, copy, atomic) NSString* label;
@end

API_AVAILABLE(macos(13.0))
@protocol MTLIOCommandBuffer <NSObject>
- (void)loadBuffer:(id<MTLBuffer>)buffer
                offset:(NSUInteger)offset
                  size:(NSUInteger)size
          sourceHandle:(id<MTLIOFileHandle>)sourceHandle
    sourceHandleOffset:(NSUInteger)sourceHandleOffset;
- (void)commit;
- (void)waitUntilCompleted;
@property(readonly) MTLIOStatus status;
@property(nullable, readonly) NSError* error;
@end

API_AVAILABLE(macos(13.0))
@protocol MTLIOCommandQueue <NSObject>
@property(nullable, copy, atomic) NSString* label;
- (id<MTLIOCommandBuffer>)commandBuffer;
@end

// ---- device

API_AVAILABLE(macos(10.11))
@protocol MTLDevice <NSObject>
@property(nonnull, readonly) NSString* name;
@property(readonly) uint64_t registryID API_AVAILABLE(macos(10.13));
@property(readonly) MTLSize maxThreadsPerThreadgroup API_AVAILABLE(macos(10.11));
@property(readonly) BOOL hasUnifiedMemory API_AVAILABLE(macos(10.15));
@property(readonly) uint64_t recommendedMaxWorkingSetSize API_AVAILABLE(macos(10.12));
@property(readonly) NSUInteger currentAllocatedSize API_AVAILABLE(macos(10.13));
@property(readonly) NSUInteger maxThreadgroupMemoryLength API_AVAILABLE(macos(10.13));
@property(readonly) NSUInteger maxBufferLength API_AVAILABLE(macos(10.14));
@property(atomic) BOOL shouldMaximizeConcurrentCompilation API_AVAILABLE(macos(13.3));
- (BOOL)supportsFamily:(MTLGPUFamily)gpuFamily API_AVAILABLE(macos(10.15));
- (nullable id<MTLCommandQueue>)newCommandQueue;
- (nullable id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options;
- (nullable id<MTLBuffer>)newBufferWithBytes:(const void*)pointer
                                      length:(NSUInteger)length
                                     options:(MTLResourceOptions)options;
- (nullable id<MTLBuffer>)newBufferWithBytesNoCopy:(void*)pointer
                                            length:(NSUInteger)length
                                           options:(MTLResourceOptions)options
                                       deallocator:(void (^_Nullable)(void* pointer, NSUInteger length))deallocator;
- (nullable id<MTLIOCommandQueue>)newIOCommandQueueWithDescriptor:(MTLIOCommandQueueDescriptor*)descriptor
                                                            error:(NSError**)error API_AVAILABLE(macos(13.0));
- (nullable id<MTLIOFileHandle>)newIOFileHandleWithURL:(NSURL*)url error:(NSError**)error API_AVAILABLE(macos(14.0));
- (nullable id<MTLLibrary>)newLibraryWithURL:(NSURL*)url
                                        error:(__autoreleasing NSError**)error API_AVAILABLE(macos(10.13), ios(11.0));
- (nullable id<MTLLibrary>)newLibraryWithData:(dispatch_data_t)data error:(__autoreleasing NSError**)error;
- (nullable id<MTLLibrary>)newLibraryWithSource:(NSString*)source
                                        options:(nullable MTLCompileOptions*)options
                                          error:(__autoreleasing NSError**)error;
- (nullable id<MTLComputePipelineState>)
    newComputePipelineStateWithDescriptor:(MTLComputePipelineDescriptor*)descriptor
                                  options:(MTLPipelineOption)options
                               reflection:(MTLAutoreleasedComputePipelineReflection* _Nullable)reflection
                                    error:(__autoreleasing NSError**)error API_AVAILABLE(macos(10.11));
- (nullable id<MTLIndirectCommandBuffer>)
    newIndirectCommandBufferWithDescriptor:(MTLIndirectCommandBufferDescriptor*)descriptor
                           maxCommandCount:(NSUInteger)maxCount
                                   options:(MTLResourceOptions)options API_AVAILABLE(macos(10.14));
- (nullable id<MTLBinaryArchive>)newBinaryArchiveWithDescriptor:(MTLBinaryArchiveDescriptor*)descriptor
                                                          error:(NSError**)error API_AVAILABLE(macos(11.0));
@end

MTL_EXTERN id<MTLDevice> _Nullable MTLCreateSystemDefaultDevice(void) API_AVAILABLE(macos(10.11)) NS_RETURNS_RETAINED;

NS_ASSUME_NONNULL_END
