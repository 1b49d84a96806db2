#include "objects.h"

#include <Block.h>
#include <cstdlib>
#include <cstring>

@implementation MockObject

+ (id)allocWithZone:(NSZone*)zone {
  mock::count_object(class_getName(self), 1);
  return NSAllocateObject(self, 0, zone);
}

- (id)retain {
  if (dead)
    mock::note("freed-object", std::string("retain of a ") + class_getName([self class]) + " after its last release");
  __atomic_add_fetch(&extra, 1, __ATOMIC_RELAXED);
  return self;
}

- (oneway void)release {
  if (dead) {
    mock::note("over-release",
               std::string("release of a ") + class_getName([self class]) + " that nobody owns any more");
  } else if (__atomic_fetch_sub(&extra, 1, __ATOMIC_ACQ_REL) == 0) {
    dead = YES;
    [self finish];
    mock::count_object(class_getName([self class]), -1);
  }
}

- (NSUInteger)retainCount {
  return dead ? 0 : static_cast<NSUInteger>(extra) + 1;
}

- (void)finish {
}

- (void)doesNotRecognizeSelector:(SEL)selector {
  mock::fail("unknown-selector",
             std::string(class_getName([self class])) + " has no method " + sel_getName(selector) + " in the mock");
}

@end

@implementation MockLabelled
- (NSString*)label {
  return label;
}
- (void)setLabel:(NSString*)text {
  [label autorelease];
  label = [text copy];
}
- (void)finish {
  [label release];
}
@end

// Every object that is autoreleased has to have a pool: a thread of Python's has none, and the object would leak.
@implementation NSObject (MockAutorelease)
- (id)autorelease {
  if ([NSAutoreleasePool currentPool] == nil) {
    mock::note("no-autorelease-pool",
               std::string("a ") + class_getName([self class]) + " was autoreleased outside of any @autoreleasepool");
    return self;
  }
  [NSAutoreleasePool addObject:self];
  return self;
}
@end

@implementation MockBuffer

- (void)finish {
  if (foreign) {
    if (deallocator) deallocator(bytes, length);
    Block_release(deallocator);
  } else {
    memset(bytes, 0xff, length); // NaN in every floating format
    free(bytes);
  }
  bytes = nullptr;
  [super finish];
}
- (void*)contents {
  MOCK_RULE("freed-object", !dead, "contents of a buffer after its last release");
  MOCK_RULE("private-contents", [self storageMode] == MTLStorageModeShared, "contents of a buffer of the GPU's own");
  return bytes;
}
- (NSUInteger)length {
  return length;
}
- (uint64_t)gpuAddress {
  return reinterpret_cast<uint64_t>(bytes);
}
- (MTLStorageMode)storageMode {
  return mock::settings().private_memory && !foreign ? MTLStorageModePrivate : MTLStorageModeShared;
}

@end

namespace mock {

MockBuffer* make_buffer(size_t length) {
  constexpr size_t kPage = 4096; // whole pages, so that they can be protected against writes
  MockBuffer* buffer = [MockBuffer alloc];
  buffer->length = length;
  const size_t pages = (length + kPage - 1) / kPage;
  buffer->bytes = static_cast<uint8_t*>(aligned_alloc(kPage, pages * kPage));
  MOCK_RULE("out-of-memory", buffer->bytes, "this machine has no ", length, " bytes left");
  memset(buffer->bytes, 0xff, length);
  return buffer;
}

NSError* make_error(NSString* domain, NSInteger code, const std::string& description) {
  return [NSError errorWithDomain:domain
                             code:code
                         userInfo:[NSDictionary dictionaryWithObject:nsstring(description)
                                                              forKey:NSLocalizedDescriptionKey]];
}

} // namespace mock
