// Objects of the mock: counted by hand, so that a release too many or a leak is told by name.
#pragma once

#import <Foundation/Foundation.h>
#import <Metal/Metal.h>
#include <objc/runtime.h>

#include <string>

#include "rules.h"

// Stays in memory after its last release, so that a later use is recognised.
@interface MockObject : NSObject {
@public
  int extra; // references beside the first
  BOOL dead;
}
- (void)finish; // what dealloc would do
@end

@interface MockLabelled : MockObject {
@public
  NSString* label;
}
- (NSString*)label;
- (void)setLabel:(NSString*)text;
@end

@interface MockBuffer : MockLabelled <MTLBuffer> {
@public
  uint8_t* bytes;
  NSUInteger length;
  BOOL foreign; // the memory isn't the buffer's own
  void (^deallocator)(void*, NSUInteger);
}
@end

namespace mock {

MockBuffer* make_buffer(size_t length); // owned by the caller; filled with 0xff, as what was there before is not known

// `object` as the mock's own class, if it is one and alive.
template <class T> T* checked(id object, const char* what) {
  MOCK_RULE("null-argument", object != nil, what, " is nil");
  T* own = static_cast<T*>(object);
  MOCK_RULE("freed-object", ![own isKindOfClass:[MockObject class]] || !static_cast<MockObject*>(own)->dead, what, " (",
            [NSStringFromClass([own class]) UTF8String], ") was used after its last release");
  MOCK_RULE("foreign-object", [own isKindOfClass:[T class]], what, " is a ",
            [NSStringFromClass([own class]) UTF8String]);
  return own;
}

inline std::string text(NSString* string) { return string ? std::string([string UTF8String]) : std::string(); }
inline NSString* nsstring(const std::string& text) { return [NSString stringWithUTF8String:text.c_str()]; }
NSError* make_error(NSString* domain, NSInteger code, const std::string& description); // autoreleased

// A C++ object that belongs to an instance of a class which Apple's headers declare without its variables.
template <class T> T& state(id object) { return **static_cast<T**>(object_getIndexedIvars(object)); }

template <class T> id allocate_with_state(Class type, const char* name) {
  id object = NSAllocateObject(type, sizeof(T*), nullptr);
  *static_cast<T**>(object_getIndexedIvars(object)) = new T();
  count_object(name, 1);
  return object;
}
template <class T> void free_state(id object, const char* name) {
  delete *static_cast<T**>(object_getIndexedIvars(object));
  count_object(name, -1);
}

} // namespace mock
