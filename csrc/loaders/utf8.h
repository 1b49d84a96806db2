// UTF-8, byte by byte.
#pragma once

#include <cstddef>
#include <string_view>

namespace foundry::loaders {

// Bytes of the UTF-8 sequence that `text`, which isn't empty, begins with; 0 if it is none. The first byte says how
// long it is, and what its second byte may be: no overlong form, no surrogate, nothing past U+10FFFF.
inline size_t utf8_sequence(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0;
  if (length == 0 || text.size() < length) return 0;
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < length; ++i)
    if (byte(i) < 0x80 || byte(i) > 0xBF) return 0;
  return length;
}

// Place of the first byte that isn't UTF-8; `npos` if there is none.
inline size_t utf8_fault(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_sequence(text.substr(i));
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

} // namespace foundry::loaders
