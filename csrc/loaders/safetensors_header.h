// The header of a safetensors file: JSON of one fixed form, of which nothing is believed. Fed piece by piece, so that
// it is never in memory as a whole. Knows neither torch nor files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace foundry::loaders {

// What is wrong with a file, in the words of a LoadError. offset: in the file; -1 where that says nothing.
struct Fault {
  std::string code, field, expected, found;
  int64_t offset;
};

// A type of elements: `block` of them take `bytes`.
struct Dtype {
  std::string name;
  uint64_t block, bytes;
};

class SafetensorsHeader {
public:
  // length: of the header in bytes, known before.
  SafetensorsHeader(std::vector<Dtype> dtypes, uint64_t length);

  // The next bytes of the header; `last` says that there are no more. Throws Fault.
  void feed(std::string_view bytes, bool last);
  // Whether the tensors, of which `feed` has seen the last, fill `room` bytes without overlap or hole. Throws Fault.
  void finish(uint64_t room);

  uint64_t size() const { return dtypes_of_.size(); }
  std::string_view name(uint64_t i) const;
  std::vector<int64_t> shape(uint64_t i) const;
  const Dtype& dtype(uint64_t i) const { return dtypes_[dtypes_of_[i]]; }
  uint64_t begin(uint64_t i) const { return begins_[i]; }
  uint64_t bytes(uint64_t i) const;
  // Index of the tensor of that name, or -1. After `finish`.
  int64_t find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

private:
  class Parser;
  enum class Next { kOpen, kFirst, kEntry, kComma, kNothing };

  bool step(Parser& in);
  void entry(Parser& in);
  void tensor(Parser& in, const std::string& name);
  void add(const std::string& name, const Dtype& dtype, const std::vector<uint64_t>& shape, uint64_t begin,
           uint64_t end, int64_t offset);
  void read_metadata(Parser& in);

  std::vector<Dtype> dtypes_;
  std::string pending_;   // bytes that are not parsed yet
  uint64_t consumed_ = 8; // place of pending_[0] in the file
  uint64_t patience_ = 0; // bytes that `pending_` needs before it is worth another try
  Next next_ = Next::kOpen;
  bool has_metadata_ = false;
  std::map<std::string, std::string> metadata_;

  struct {
    std::vector<uint64_t> shape, offsets;
  } numbers_; // of the tensor that is being read

  // One entry per tensor, in the header's order. A header has at most 10^8 bytes, so 32 bits hold places in it.
  std::string names_;
  std::vector<int64_t> dims_;
  std::vector<uint32_t> name_ends_, dims_ends_, by_name_;
  std::vector<uint64_t> begins_;
  std::vector<uint8_t> dtypes_of_;
};

} // namespace foundry::loaders
