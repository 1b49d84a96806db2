// Memory that isn't Metal's own, and files that Metal reads into buffers. Reading is as late as can be: nothing is there
// before somebody waits, and commands of one buffer run in reverse order.
#include <Block.h>
#include <algorithm>
#include <fcntl.h>
#include <unistd.h>

#include "commands.h"
#include "descriptors.h"

namespace {

struct Load {
  mock::Retained<MockBuffer> buffer;
  NSUInteger offset, size, from;
  id file;
};

} // namespace

@interface MockIoQueue : MockLabelled <MTLIOCommandQueue>
@end

@interface MockIoFile : MockLabelled <MTLIOFileHandle> {
@public
  int fd;
}
@end

@interface MockIoCommands : MockObject <MTLIOCommandBuffer> {
@public
  std::vector<Load>* loads;
  BOOL committed;
  MTLIOStatus status;
  NSError* error;
}
@end

@implementation MockIoQueue
- (id<MTLIOCommandBuffer>)commandBuffer {
  return [[MockIoCommands alloc] autorelease];
}
@end

@implementation MockIoFile
- (void)finish {
  close(fd);
  [super finish];
}
@end

@implementation MockIoCommands
+ (id)allocWithZone:(NSZone*)zone {
  MockIoCommands* made = [super allocWithZone:zone];
  made->loads = new std::vector<Load>;
  return made;
}
- (void)finish {
  for (Load& load : *loads) [load.file release];
  delete loads;
  [error release];
}
- (void)loadBuffer:(id<MTLBuffer>)given
                offset:(NSUInteger)offset
                  size:(NSUInteger)size
          sourceHandle:(id<MTLIOFileHandle>)handle
    sourceHandleOffset:(NSUInteger)from {
  MOCK_RULE("io-committed", !committed, "loadBuffer after commit");
  auto* buffer = mock::checked<MockBuffer>(given, "the buffer to load into");
  auto* file = mock::checked<MockIoFile>(handle, "the file to load");
  MOCK_RULE("io-range", size > 0 && offset + size <= buffer->length, "a load of ", size, " bytes at ", offset,
            " into a buffer of ", buffer->length);
  const auto own = std::count_if(loads->begin(), loads->end(), [&](Load& l) { return l.buffer.get() == buffer; });
  MOCK_RULE("io-in-use", buffer->extra == own, "a load into a buffer that the GPU has yet to use");
  loads->push_back({mock::Retained<MockBuffer>(buffer), offset, size, from, [file retain]});
  mock::trace("load");
}
- (void)commit {
  MOCK_RULE("io-committed", !committed, "commit of a committed I/O command buffer");
  committed = YES;
}
- (void)waitUntilCompleted {
  MOCK_RULE("io-committed", committed, "waitUntilCompleted before commit never returns");
  if (status != MTLIOStatusPending) return;
  status = MTLIOStatusComplete;
  for (auto load = loads->rbegin(); load != loads->rend(); ++load) {
    auto* file = static_cast<MockIoFile*>(load->file);
    const ssize_t got = pread(file->fd, load->buffer.get()->bytes + load->offset, load->size, static_cast<off_t>(load->from));
    if (got == static_cast<ssize_t>(load->size)) continue;
    status = MTLIOStatusError;
    error = [mock::make_error(@"MTLIOErrorDomain", 2, "The file ends before the load") retain];
    return;
  }
}
- (MTLIOStatus)status {
  return status;
}
- (NSError*)error {
  return error;
}
@end

@implementation MockDevice (Files)
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void*)pointer
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void (^)(void*, NSUInteger))deallocator {
  const auto page = static_cast<NSUInteger>(getpagesize());
  MOCK_RULE("buffer-length", length > 0, "newBufferWithBytesNoCopy: of no bytes");
  MOCK_RULE("whole-pages", reinterpret_cast<uintptr_t>(pointer) % page == 0 && length % page == 0,
            "newBufferWithBytesNoCopy: takes whole pages");
  if (length > [self maxBufferLength]) return nil;
  [[[NSObject alloc] init] autorelease]; // drivers have their own
  MockBuffer* buffer = [MockBuffer alloc];
  buffer->bytes = static_cast<uint8_t*>(pointer);
  buffer->length = length;
  buffer->foreign = YES;
  if (deallocator) buffer->deallocator = Block_copy(deallocator);
  mock::trace("no copy");
  return buffer;
}

- (id<MTLIOCommandQueue>)newIOCommandQueueWithDescriptor:(MTLIOCommandQueueDescriptor*)descriptor
                                                   error:(NSError**)error {
  MOCK_RULE("null-argument", descriptor, "the descriptor of an I/O command queue is nil");
  if (mock::settings().io) return [MockIoQueue alloc];
  if (error) *error = mock::make_error(@"MTLIOErrorDomain", 2, "I/O command queues are not supported on this device");
  return nil;
}

- (id<MTLIOFileHandle>)newIOFileHandleWithURL:(NSURL*)url error:(NSError**)error {
  const std::string path = mock::text([url path]);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (error) *error = mock::make_error(@"MTLIOErrorDomain", 1, "The file " + path + " couldn't be opened");
    return nil;
  }
  MockIoFile* file = [MockIoFile alloc];
  file->fd = fd;
  return file;
}
@end
