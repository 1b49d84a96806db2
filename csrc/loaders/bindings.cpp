// The readers of headers, for Python.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <tuple>

#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include "core/threads.h"
#include "loaders/safetensors_header.h"
#include "loaders/utf8.h"

namespace foundry::loaders {
namespace {

// (code, field, expected, found, offset) of a LoadError.
using Found = std::optional<std::tuple<std::string, std::string, std::string, std::string, int64_t>>;

template <class F> Found fault_of(F&& f) {
  try {
    f();
    return std::nullopt;
  } catch (const Fault& fault) {
    return std::make_tuple(fault.code, fault.field, fault.expected, fault.found, fault.offset);
  }
}

struct Header : torch::CustomClassHolder {
  SafetensorsHeader it;
  bool finished = false;

  static std::vector<Dtype> dtypes(const std::vector<std::tuple<std::string, int64_t, int64_t>>& table) {
    std::vector<Dtype> found;
    for (const auto& [name, block, bytes] : table)
      found.push_back({name, static_cast<uint64_t>(block), static_cast<uint64_t>(bytes)});
    return found;
  }
  Header(const std::vector<std::tuple<std::string, int64_t, int64_t>>& table, int64_t length)
      : it(dtypes(table), static_cast<uint64_t>(length)) {}

  Found feed(const at::Tensor& bytes, bool last) {
    TORCH_CHECK(bytes.device().is_cpu() && bytes.scalar_type() == at::kByte && bytes.is_contiguous(),
                "bytes: expected contiguous uint8 on the CPU");
    const std::string_view view(static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel()));
    return fault_of([&] { it.feed(view, last); });
  }
  Found finish(int64_t room) {
    finished = true;
    return fault_of([&] { it.finish(static_cast<uint64_t>(room)); });
  }
  uint64_t checked(int64_t i) const {
    TORCH_CHECK(finished && i >= 0 && i < size(), "index: expected 0 to ", size(), ", got ", i);
    return static_cast<uint64_t>(i);
  }
  int64_t size() const { return static_cast<int64_t>(it.size()); }
  std::string name(int64_t i) const { return std::string(it.name(checked(i))); }
  std::tuple<std::string, std::vector<int64_t>, int64_t, int64_t> tensor(int64_t i) const {
    const uint64_t at = checked(i);
    return {it.dtype(at).name, it.shape(at), static_cast<int64_t>(it.begin(at)), static_cast<int64_t>(it.bytes(at))};
  }
};

// Goes over at most `count` strings of GGUF (64-bit length, text) that lie one after the other in `bytes`, as far as
// they are there whole and UTF-8: [strings, bytes that they take, place of the first byte that isn't UTF-8 or -1].
std::vector<int64_t> skip_strings(const at::Tensor& bytes, int64_t count) {
  TORCH_CHECK(bytes.device().is_cpu() && bytes.scalar_type() == at::kByte && bytes.is_contiguous(),
              "bytes: expected contiguous uint8 on the CPU");
  const std::string_view all(static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel()));
  size_t at = 0;
  int64_t done = 0;
  for (; done < count && all.size() - at >= 8; ++done) {
    uint64_t length;
    std::memcpy(&length, all.data() + at, 8);
    if (length > all.size() - at - 8) break;
    const size_t bad = utf8_fault(all.substr(at + 8, length));
    if (bad != std::string_view::npos) return {done, static_cast<int64_t>(at), static_cast<int64_t>(at + 8 + bad)};
    at += 8 + length;
  }
  return {done, static_cast<int64_t>(at), -1};
}

// Byte of the first element, from `begin` to `end`, in which all bits of `mask` are set; `end` if there is none.
// Elements of `width` bytes lie side by side; the bits of the mask too, below the highest one. Eight bytes at a time:
// adding the mask's lowest bit carries into an element's highest bit if the others are set, and never further.
int64_t first_dense(const unsigned char* data, int64_t begin, int64_t end, int64_t width, uint64_t mask) {
  const uint64_t lane = width == 8 ? 1 : UINT64_MAX / ((uint64_t(1) << (8 * width)) - 1); // 1 in each element
  const uint64_t all = lane * mask, one = lane * (mask & (~mask + 1)), top = lane << (8 * width - 1);
  constexpr int64_t kPiece = 4096;
  for (; begin < end; begin += kPiece) {
    const int64_t stop = std::min(begin + kPiece, end);
    uint64_t found = 0, word = 0;
    int64_t i = begin;
    for (; i + 8 <= stop; i += 8) {
      std::memcpy(&word, data + i, 8);
      found |= (word & all) + one;
    }
    word = 0;
    std::memcpy(&word, data + i, static_cast<size_t>(stop - i));
    found |= (word & all) + one;
    if ((found & top) == 0) continue;
    for (i = begin; i < stop; i += width) {
      word = 0;
      std::memcpy(&word, data + i, static_cast<size_t>(width));
      if ((word & mask) == mask) return i;
    }
  }
  return end;
}

// The same of elements that are `stride` bytes apart.
template <class Word>
int64_t first_strided(const unsigned char* data, int64_t begin, int64_t end, int64_t stride, uint64_t mask) {
  const Word all = static_cast<Word>(mask);
  for (int64_t i = begin; i < end; i += stride) {
    Word word;
    std::memcpy(&word, data + i, sizeof(Word));
    if ((word & all) == all) return i;
  }
  return end;
}

// Start of the first block of `stride` bytes whose element of `width` bytes at `offset` has all bits of `mask` set, as
// the exponent of NaN and infinity has; -1 if there is none. By as many threads as torch uses.
int64_t find_nonfinite(const at::Tensor& bytes, int64_t stride, int64_t offset, int64_t width, int64_t mask) {
  TORCH_CHECK(bytes.device().is_cpu() && bytes.scalar_type() == at::kByte && bytes.is_contiguous(),
              "bytes: expected contiguous uint8 on the CPU");
  const bool dense = stride == width && offset == 0;
  TORCH_CHECK(width == 1 || width == 2 || width == 4 || (width == 8 && dense), "width: expected 1, 2, 4 or 8");
  TORCH_CHECK(offset >= 0 && stride > 0 && offset + width <= stride && bytes.numel() % stride == 0,
              "bytes: expected whole blocks of ", stride, " bytes, with an element at ", offset);
  const auto* data = static_cast<const unsigned char*>(bytes.const_data_ptr()) + offset;
  const auto bits = static_cast<uint64_t>(mask);
  std::atomic<int64_t> first{INT64_MAX};
  in_parts(bytes.numel() / stride, (int64_t(1) << 19) / stride + 1, [&](int64_t from, int64_t to) {
    const int64_t begin = from * stride, end = to * stride;
    const int64_t at = dense        ? first_dense(data, begin, end, width, bits)
                       : width == 1 ? first_strided<uint8_t>(data, begin, end, stride, bits)
                       : width == 2 ? first_strided<uint16_t>(data, begin, end, stride, bits)
                                    : first_strided<uint32_t>(data, begin, end, stride, bits);
    int64_t known = first.load();
    while (at < end && at < known && !first.compare_exchange_weak(known, at)) {
    }
  });
  return first.load() == INT64_MAX ? -1 : first.load();
}

} // namespace

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def("find_nonfinite(Tensor bytes, int stride, int offset, int width, int mask) -> int", &find_nonfinite);
  m.def("skip_strings(Tensor bytes, int count) -> int[]", &skip_strings);
  using Self = c10::intrusive_ptr<Header>;
  m.class_<Header>("SafetensorsHeader")
      .def(torch::init<std::vector<std::tuple<std::string, int64_t, int64_t>>, int64_t>())
      .def("feed", &Header::feed)
      .def("finish", &Header::finish)
      .def("size", &Header::size)
      .def("name", &Header::name)
      .def("tensor", &Header::tensor)
      .def("find", [](const Self& self, const std::string& name) { return self->it.find(name); })
      .def("metadata", [](const Self& self) {
        c10::Dict<std::string, std::string> found;
        for (const auto& [key, value] : self->it.metadata()) found.insert(key, value);
        return found;
      });
}

} // namespace foundry::loaders
