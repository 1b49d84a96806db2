// Part of mistakes.mm: `RULE` or `RULE/variant` -> code that breaks it; `off:RULE` is run outside of the stream's
// queue; `right/...` breaks none.

void run_indirect(Client& c, MTLResourceUsage of_y, bool barrier) {
  Indirect work(c, barrier);
  work.reside(of_y);
  work.execute();
  work.finish();
}

// y = 2 x, then y = 2 y, on an encoder of the client's own, and a blit that copies nothing new.
void run_concurrent(Client& c, bool barrier) {
  c.stream->endKernelCoalescing();
  MPSCommandBuffer* buffer = c.stream->commandBuffer();
  c.encoder = [buffer computeCommandEncoderWithDispatchType:MTLDispatchTypeConcurrent];
  c.bind();
  c.launch();
  if (barrier) [c.encoder memoryBarrierWithScope:MTLBarrierScopeBuffers];
  [c.encoder setBuffer:buffer_of(c.y) offset:0 atIndex:0];
  c.launch();
  [c.encoder endEncoding];
  id<MTLBlitCommandEncoder> blit = [buffer blitCommandEncoder];
  [blit copyFromBuffer:buffer_of(c.y) sourceOffset:0 toBuffer:buffer_of(c.y) destinationOffset:0 size:16];
  [blit endEncoding];
}

void leak_nothing(Client& c) {
  c.bind();
  c.launch();
}

const std::map<std::string, Mistake>& mistakes() {
  constexpr MTLResourceUsage kBoth = MTLResourceUsageRead | MTLResourceUsageWrite;
  static const auto* list = new std::map<std::string, Mistake>{
      {"right/direct", leak_nothing},
      {"right/indirect", [](Client& c) { run_indirect(c, kBoth, true); }},
      {"right/handler",
       [](Client& c) {
         c.bind();
         c.launch();
         c.stream->endKernelCoalescing();
         [c.stream->commandBuffer() addCompletedHandler:^(id<MTLCommandBuffer> done) {
           TORCH_CHECK(done.status == MTLCommandBufferStatusCompleted);
           trace("handler");
         }];
       }},
      {"right/concurrent", [](Client& c) { run_concurrent(c, true); }},
      {"missing-barrier/concurrent", [](Client& c) { run_concurrent(c, false); }},
      {"missing-barrier", [](Client& c) { run_indirect(c, kBoth, false); }}, // told by the numbers

      // queue and stream
      {"queue-reentrance",
       [](Client& c) {
         dispatch_sync(c.stream->queue(), ^{
                       });
       }},
      {"queue-reentrance/handler",
       [](Client& c) {
         c.stream->addCompletedHandler(^(id<MTLCommandBuffer>){
         });
       }},
      {"off:off-queue/encoder", [](Client& c) { c.stream->commandEncoder(); }},
      {"off:off-queue/buffer", [](Client& c) { c.stream->commandBuffer(); }},
      {"off:off-queue/synchronize", [](Client& c) { c.stream->synchronize(at::mps::SyncType::COMMIT); }},
      {"off:exception-in-dispatch",
       [](Client& c) {
         dispatch_sync(c.stream->queue(), ^{
           TORCH_CHECK(false, "an error of the client");
         });
       }},
      {"allocation-on-queue", [](Client& c) { at::empty_like(c.x); }},
      {"profiler-hooks", [](Client& c) { at::mps::getMPSProfiler().endProfileKernel(c.twice); }},

      // encoders and command buffers
      {"second-encoder", [](Client& c) { [c.stream->commandBuffer() computeCommandEncoder]; }},
      {"second-encoder/blit", [](Client& c) { [c.stream->commandBuffer() blitCommandEncoder]; }},
      {"encoder-ended",
       [](Client& c) {
         [c.encoder endEncoding]; // torch's: not the client's to end
         c.bind();
       }},
      {"open-encoder", [](Client& c) { [c.stream->commandBuffer() commit]; }},
      {"committed-buffer",
       [](Client& c) {
         c.stream->endKernelCoalescing();
         MPSCommandBuffer* buffer = c.stream->commandBuffer();
         [buffer commit];
         [buffer computeCommandEncoder];
       }},
      {"command-buffer-error",
       [](Client& c) {
         settings().fail_command_buffer = 1;
         c.bind();
         c.launch();
       }},

      // arguments
      {"bytes-length/long",
       [](Client& c) {
         char bytes[4097] = {};
         [c.encoder setBytes:bytes length:sizeof bytes atIndex:2];
       }},
      {"bytes-length/none", [](Client& c) { [c.encoder setBytes:"" length:0 atIndex:2]; }},
      {"buffer-offset", [](Client& c) { [c.encoder setBuffer:buffer_of(c.x) offset:c.x.nbytes() atIndex:0]; }},
      {"buffer-index", [](Client& c) { [c.encoder setBuffer:buffer_of(c.x) offset:0 atIndex:31]; }},
      {"constant-alignment",
       [](Client& c) {
         c.bind();
         [c.encoder setBuffer:buffer_of(c.x) offset:2 atIndex:2];
         c.launch();
       }},
      {"unbound-buffer",
       [](Client& c) {
         c.bind();
         [c.encoder setBuffer:nil offset:0 atIndex:1];
         c.launch();
       }},
      {"null-argument", [](Client& c) { [c.encoder setComputePipelineState:nil]; }},
      {"foreign-object", [](Client& c) { [c.encoder setBuffer:static_cast<id>(c.twice) offset:0 atIndex:0]; }},

      // grids
      {"no-pipeline", [](Client& c) { c.launch(); }},
      {"empty-grid",
       [](Client& c) {
         c.bind();
         [c.encoder dispatchThreads:size(0) threadsPerThreadgroup:size(8)];
       }},
      {"threadgroup-size/large",
       [](Client& c) {
         c.bind();
         [c.encoder dispatchThreads:size(8) threadsPerThreadgroup:size(1025)];
       }},
      {"threadgroup-size/empty",
       [](Client& c) {
         c.bind();
         [c.encoder dispatchThreads:size(8) threadsPerThreadgroup:size(0)];
       }},
      {"grid-size",
       [](Client& c) {
         c.bind();
         [c.encoder dispatchThreadgroups:size(NSUInteger{1} << 25) threadsPerThreadgroup:size(256)];
       }},
      {"threadgroup-memory/multiple", [](Client& c) { [c.encoder setThreadgroupMemoryLength:20 atIndex:0]; }},
      {"threadgroup-memory/large", [](Client& c) { [c.encoder setThreadgroupMemoryLength:32784 atIndex:0]; }},
      {"threadgroup-memory/none",
       [](Client& c) {
         c.bind();
         [c.encoder setComputePipelineState:c.shared];
         c.launch();
       }},

      // libraries
      {"off:fast-math",
       [](Client&) { [device() newLibraryWithSource:nsstring_of(kSource) options:options(true) error:nil]; }},
      {"off:fast-math/functions",
       [](Client&) {
         MTLCompileOptions* made = [[[MTLCompileOptions alloc] init] autorelease];
         made.mathMode = MTLMathModeSafe;
         [device() newLibraryWithSource:nsstring_of(kSource) options:made error:nil];
       }},
      {"off:buffer-length", [](Client&) { [device() newBufferWithLength:0 options:MTLResourceStorageModeShared]; }},
      {"off:buffer-length/no-copy",
       [](Client&) { [device() newBufferWithBytesNoCopy:pages() length:0 options:kShared deallocator:nil]; }},
      {"off:whole-pages/length",
       [](Client&) { [device() newBufferWithBytesNoCopy:pages() length:100 options:kShared deallocator:nil]; }},
      {"off:whole-pages/pointer",
       [](Client&) { [device() newBufferWithBytesNoCopy:pages() + 32 length:kPage options:kShared deallocator:nil]; }},
      {"off:private-contents",
       [](Client& c) {
         settings().private_memory = 1;
         [buffer_of(c.x) contents];
       }},

      // reading files
      {"io-range/buffer", [](Client& c) { Reading(c).load(16, 17); }},
      {"io-range/nothing", [](Client& c) { Reading(c).load(0, 0); }},
      {"io-committed/load",
       [](Client& c) {
         Reading reading(c);
         [reading.commands commit];
         reading.load(0, 8);
       }},
      {"io-committed/twice",
       [](Client& c) {
         Reading reading(c);
         [reading.commands commit];
         [reading.commands commit];
       }},
      {"io-committed/wait", [](Client& c) { [Reading(c).commands waitUntilCompleted]; }},
      {"io-in-use",
       [](Client& c) {
         c.bind();
         c.launch(); // has yet to run
         Reading reading(c);
         reading.load(0, 8);
         [reading.commands commit];
       }},
      {"off:function-constant",
       [](Client&) {
         MTLFunctionConstantValues* constants = [[[MTLFunctionConstantValues alloc] init] autorelease];
         [constants setConstantValue:nullptr type:MTLDataTypeBool atIndex:0];
       }},

      // lifetime
      {"freed-object/pipeline",
       [](Client& c) {
         @autoreleasepool {
           c.twice = pipeline("twice");
         }
         c.bind();
       }},
      {"right/but-leaks",
       [](Client& c) {
         leak_nothing(c);
         [library() newFunctionWithName:nsstring_of("shared")];
       }},
      {"over-release",
       [](Client&) {
         id<MTLBuffer> buffer = [device() newBufferWithLength:16 options:MTLResourceStorageModeShared];
         [buffer release];
         [buffer release];
       }},

      {"off:no-autorelease-pool", [](Client&) { std::thread([] { [[[NSObject alloc] init] autorelease]; }).join(); }},
      {"off:unknown-selector", [](Client&) { [static_cast<id>(device()) newHeapWithDescriptor:nil]; }},

      // indirect command buffers
      {"icb-pipeline",
       [](Client& c) {
         Indirect work(c);
         c.stream->endKernelCoalescing();
         [[work.icb indirectComputeCommandAtIndex:0] setComputePipelineState:c.twice];
       }},
      {"icb-bind-count/buffer",
       [](Client& c) {
         Indirect work(c);
         [[work.icb indirectComputeCommandAtIndex:0] setKernelBuffer:work.n offset:0 atIndex:3];
       }},
      {"icb-bind-count/memory",
       [](Client& c) {
         Indirect work(c);
         [[work.icb indirectComputeCommandAtIndex:0] setThreadgroupMemoryLength:16 atIndex:1];
       }},
      {"icb-residency",
       [](Client& c) {
         Indirect work(c);
         work.execute();
       }},
      {"icb-usage", [](Client& c) { run_indirect(c, MTLResourceUsageRead, true); }},
      {"resource-usage", [](Client& c) { [c.encoder useResource:buffer_of(c.x) usage:0]; }},
      {"icb-in-flight",
       [](Client& c) {
         Indirect work(c);
         work.reside();
         work.execute();
         c.stream->synchronize(at::mps::SyncType::COMMIT); // submitted; the GPU has yet to run it
         [[work.icb indirectComputeCommandAtIndex:0] setBarrier];
       }},
      {"freed-object/icb",
       [](Client& c) {
         Indirect work(c);
         work.reside();
         work.execute();
         [work.icb release];
       }},
      {"freed-object/icb-buffer",
       [](Client& c) {
         Indirect work(c);
         work.reside();
         work.execute();
         [work.n release];
       }},
      {"icb-dispatch-kind/command",
       [](Client& c) {
         Indirect work(c);
         [[work.icb indirectComputeCommandAtIndex:0] concurrentDispatchThreads:size(8) threadsPerThreadgroup:size(8)];
       }},
      {"icb-dispatch-kind/descriptor",
       [](Client&) {
         MTLIndirectCommandBufferDescriptor* both = icb_descriptor();
         both.commandTypes |= MTLIndirectCommandTypeConcurrentDispatchThreads;
         [device() newIndirectCommandBufferWithDescriptor:both maxCommandCount:1 options:MTLResourceStorageModeShared];
       }},
      {"icb-inherit",
       [](Client&) {
         MTLIndirectCommandBufferDescriptor* inherits = icb_descriptor();
         inherits.inheritBuffers = YES;
         [device() newIndirectCommandBufferWithDescriptor:inherits
                                          maxCommandCount:1
                                                  options:MTLResourceStorageModeShared];
       }},
      {"icb-range",
       [](Client& c) {
         Indirect work(c);
         [c.encoder executeCommandsInBuffer:work.icb withRange:NSMakeRange(1, 2)];
       }},
      {"icb-warm-up",
       [](Client& c) {
         settings().family = 1007;
         run_indirect(c, kBoth, true);
       }},
  };
  return *list;
}
