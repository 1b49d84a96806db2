#include "loaders/json.h"

#include <cstdio>

#include "loaders/utf8.h"

namespace foundry::loaders {
namespace {

void append_utf8(std::string& text, uint32_t c) {
  auto put = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 63));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 63)), put(0x80 | (c >> 6 & 63)), put(0x80 | (c & 63));
  }
}

} // namespace

std::string SafetensorsHeader::Parser::quoted(char c) {
  const auto byte = static_cast<unsigned char>(c);
  if (byte >= 0x20 && byte < 0x7F) return std::string("'") + c + "'";
  char text[16];
  std::snprintf(text, sizeof(text), "byte 0x%02x", byte);
  return text;
}

void SafetensorsHeader::Parser::check_utf8(uint64_t from) const {
  const size_t bad = utf8_fault(bytes_.substr(from, position_ - from));
  if (bad == std::string_view::npos) return;
  throw Fault{"ST_UTF8", field, "text in UTF-8", quoted(bytes_[from + bad]), static_cast<int64_t>(at_ + from + bad)};
}

std::string SafetensorsHeader::Parser::string(const char* expected, const char* lone) {
  need('"', expected);
  std::string text;
  while (true) {
    const uint64_t from = position_;
    unsigned char all = 0, c = 0;
    while (position_ < bytes_.size() && (c = bytes_[position_]) != '"' && c != '\\' && c >= 0x20) {
      all |= c;
      ++position_;
    }
    peek("the end of the text"); // before a character that is cut off here is taken for a bad one
    if (all & 0x80) check_utf8(from);
    text.append(bytes_.substr(from, position_ - from));
    if (take('"', "the end of the text")) return text;
    if (!take('\\', "the end of the text")) fail_json("text without control characters");
    escape(text, lone);
  }
}

void SafetensorsHeader::Parser::escape(std::string& text, const char* lone) {
  const char c = peek("an escaped character");
  const size_t which = std::string_view("\"\\/bfnrt").find(c);
  if (which != std::string_view::npos) {
    ++position_;
    text.push_back("\"\\/\b\f\n\r\t"[which]);
    return;
  }
  need('u', "an escaped character");
  uint32_t code = hex4();
  if (code >= 0xD800 && code < 0xE000) {
    if (code >= 0xDC00 || !take('\\', "the other half of a surrogate pair") || !take('u', "the other half"))
      fail(lone, "a character", "half of a surrogate pair");
    const uint32_t low = hex4();
    if (low < 0xDC00 || low >= 0xE000) fail(lone, "a character", "half of a surrogate pair");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(text, code);
}

uint32_t SafetensorsHeader::Parser::hex4() {
  uint32_t value = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = peek("four hexadecimal digits");
    const size_t digit =
        std::string_view("0123456789abcdef").find(static_cast<char>(c >= 'A' && c <= 'F' ? c + 32 : c));
    if (digit == std::string_view::npos) fail_json("four hexadecimal digits");
    value = value * 16 + static_cast<uint32_t>(digit);
    ++position_;
  }
  return value;
}

uint64_t SafetensorsHeader::Parser::number(const char* expected, const char* negative) {
  if (peek(expected) == '-') fail(negative, expected, "a negative number");
  if (peek(expected) < '0' || peek(expected) > '9') fail_json(expected);
  const bool zero = peek(expected) == '0';
  uint64_t value = 0;
  for (bool first = true;; first = false) {
    const char c = peek(expected);
    if (c < '0' || c > '9') return value;
    if (zero && !first) fail_json("a number without zeros before it");
    const auto digit = static_cast<uint64_t>(c - '0');
    value = value > (UINT64_MAX - digit) / 10 ? UINT64_MAX : value * 10 + digit;
    ++position_;
  }
}

} // namespace foundry::loaders
