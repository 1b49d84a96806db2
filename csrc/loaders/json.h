// As much of JSON as the header of a safetensors file is made of: a place in it, and what may stand there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "loaders/safetensors_header.h"

namespace foundry::loaders {

// Thrown where the bytes end and more are to come.
struct Incomplete {};

class SafetensorsHeader::Parser {
public:
  // at: place of the first byte in the file. last: no more bytes will follow.
  Parser(std::string_view bytes, uint64_t at, bool last) : bytes_(bytes), at_(at), last_(last) {}

  std::string field = "header"; // for faults

  uint64_t position() const { return position_; }
  int64_t offset() const { return static_cast<int64_t>(at_ + position_); }

  [[noreturn]] void fail(const char* code, std::string expected, std::string found) const {
    throw Fault{code, field, std::move(expected), std::move(found), offset()};
  }
  [[noreturn]] void fail_json(const char* expected) const {
    fail("ST_JSON", expected, position_ < bytes_.size() ? quoted(bytes_[position_]) : "the end of the header");
  }

  // Whether all of the header has been read. Needs to know that there is no more.
  bool at_end() {
    if (position_ < bytes_.size()) return false;
    if (!last_) throw Incomplete{};
    return true;
  }
  char peek(const char* expected) {
    if (at_end()) fail_json(expected);
    return bytes_[position_];
  }
  bool take(char c, const char* expected) {
    if (peek(expected) != c) return false;
    ++position_;
    return true;
  }
  void need(char c, const char* expected) {
    if (!take(c, expected)) fail_json(expected);
  }
  void skip_space() {
    constexpr std::string_view eight = "        ";
    while (position_ < bytes_.size()) {
      const char c = bytes_[position_];
      if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return;
      position_ += bytes_.compare(position_, eight.size(), eight) == 0 ? eight.size() : 1;
    }
  }

  // A string, decoded to UTF-8. lone: code of the fault that half of a surrogate pair is.
  std::string string(const char* expected, const char* lone);
  // A whole number of at least 0; more than 64 bits give 2^64 - 1. negative: code of the fault that a minus is.
  uint64_t number(const char* expected, const char* negative);

private:
  static std::string quoted(char c);
  void escape(std::string& text, const char* lone);
  uint32_t hex4();
  void check_utf8(uint64_t from) const;

  std::string_view bytes_;
  uint64_t at_, position_ = 0;
  bool last_;
};

} // namespace foundry::loaders
