// Objective-C objects in C++, with manual retain and release as in torch's own MPS sources.
#pragma once

#import <Foundation/Foundation.h>

#include <string>
#include <utility>

namespace foundry::metal {

// Owns one reference. Takes over what `new...`, `alloc` and `copy` return; `retained` is for everything else.
template <class T> class Ref {
public:
  Ref() = default;
  explicit Ref(T owned) : object_(owned) {}
  static Ref retained(T object) { return Ref([object retain]); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nil)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  Ref(const Ref&) = delete;
  Ref& operator=(const Ref&) = delete;
  ~Ref() { [object_ release]; }
  T get() const { return object_; }
  explicit operator bool() const { return object_ != nil; }

private:
  T object_ = nil;
};

inline Ref<NSString*> string(const std::string& text) {
  return Ref<NSString*>([[NSString alloc] initWithBytes:text.data() length:text.size() encoding:NSUTF8StringEncoding]);
}

inline std::string text(NSString* string) { return string ? [string UTF8String] : ""; }
inline std::string text(NSError* error) { // never empty
  const std::string words = text([error localizedDescription]);
  return words.empty() ? "no reason was given" : words;
}

} // namespace foundry::metal
