// What csrc/metal and torch's MPS headers use of Foundation, declared as Apple does: for compiling for macOS where there
// is no SDK (check.py). Selectors that are not here are errors there.
#pragma once
#include <dispatch/dispatch.h>
#include <objc/NSObject.h>
#include <objc/objc.h>
#include <os/availability.h>
#include <stddef.h>
#include <stdint.h>

#define NS_ENUM(type, name)                                                                                            \
  enum name : type name;                                                                                               \
  enum name : type
#define NS_OPTIONS(type, name)                                                                                         \
  type name;                                                                                                           \
  enum __attribute__((flag_enum)) : type
#define NS_ASSUME_NONNULL_BEGIN _Pragma("clang assume_nonnull begin")
#define NS_ASSUME_NONNULL_END _Pragma("clang assume_nonnull end")
#define NS_RETURNS_RETAINED __attribute__((ns_returns_retained))

NS_ASSUME_NONNULL_BEGIN

typedef double NSTimeInterval;
typedef struct {
  NSUInteger location, length;
} NSRange;
static inline NSRange NSMakeRange(NSUInteger location, NSUInteger length) {
  NSRange range = {location, length};
  return range;
}
typedef NSUInteger NSStringEncoding;
enum { NSASCIIStringEncoding = 1, NSUTF8StringEncoding = 4 };

@class NSArray<T>, NSData, NSDictionary<K, V>, NSError, NSNumber, NSString, NSURL;

@protocol NSCopying
@end

typedef struct {
  unsigned long state;
  id __unsafe_unretained _Nullable* _Nullable itemsPtr;
  unsigned long* _Nullable mutationsPtr;
  unsigned long extra[5];
} NSFastEnumerationState;

@protocol NSFastEnumeration
- (NSUInteger)countByEnumeratingWithState:(NSFastEnumerationState*)state
                                  objects:(id __unsafe_unretained _Nullable[_Nonnull])buffer
                                    count:(NSUInteger)count;
@end

@interface NSValue : NSObject
@end

@interface NSNumber : NSValue <NSCopying>
+ (NSNumber*)numberWithInt:(int)value;
+ (NSNumber*)numberWithInteger:(NSInteger)value;
+ (NSNumber*)numberWithUnsignedInteger:(NSUInteger)value;
@end

@interface NSString : NSObject <NSCopying>
+ (nullable instancetype)stringWithUTF8String:(const char*)text;
- (nullable instancetype)initWithBytes:(const void*)bytes
                                length:(NSUInteger)length
                              encoding:(NSStringEncoding)encoding;
- (BOOL)isEqualToString:(NSString*)other;
@property(nullable, readonly) const char* UTF8String;
@property(readonly) NSUInteger length;
@end

@interface NSConstantString : NSString
@end

@interface NSURL : NSObject <NSCopying>
+ (NSURL*)fileURLWithPath:(NSString*)path;
@property(nullable, readonly, copy) NSString* path;
@end

@interface NSError : NSObject <NSCopying>
@property(readonly, copy) NSString* localizedDescription;
@property(readonly, copy) NSString* domain;
@property(readonly) NSInteger code;
@end

@interface NSArray<T> : NSObject <NSCopying, NSFastEnumeration>
@property(readonly) NSUInteger count;
- (T)objectAtIndex:(NSUInteger)index;
- (T)objectAtIndexedSubscript:(NSUInteger)index;
+ (instancetype)arrayWithObject:(T)object;
+ (instancetype)arrayWithObjects:(const T _Nonnull[_Nonnull])objects count:(NSUInteger)count;
@end

@interface NSDictionary <K, V> : NSObject <NSCopying>
+ (instancetype)dictionaryWithObjects:(const V _Nonnull[_Nullable])objects
                              forKeys:(const K _Nonnull[_Nullable])keys
                                count:(NSUInteger)count;
@end

@interface NSFileManager : NSObject
@property(class, readonly, strong) NSFileManager* defaultManager;
- (BOOL)fileExistsAtPath:(NSString*)path;
@end

NS_ASSUME_NONNULL_END
