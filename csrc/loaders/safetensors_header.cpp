#include "loaders/safetensors_header.h"

#include <algorithm>
#include <numeric>

#include "loaders/json.h"

namespace foundry::loaders {
namespace {

constexpr uint64_t kLimit = INT64_MAX; // of elements and bytes
constexpr size_t kMostDims = 64;       // as torch takes them
constexpr uint64_t kShortestEntry = 48;
constexpr uint64_t kLongestEntry = 8 << 20; // bytes of a tensor's description, or of all metadata, with white space

std::string list(const std::vector<uint64_t>& numbers) {
  std::string text = "[";
  for (size_t i = 0; i < numbers.size(); ++i) text += (i ? ", " : "") + std::to_string(numbers[i]);
  return text + "]";
}

// The beginning of a text, for a message; whole characters, in quotes, as it may be empty.
std::string clipped(const std::string& text) {
  size_t end = std::min<size_t>(text.size(), 80);
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return "'" + text.substr(0, end) + "'";
}

// Whether a name has control characters, or is a path that leads away from where it is.
bool bad_name(std::string_view name) {
  for (size_t i = 0; i < name.size(); ++i) {
    const auto c = static_cast<unsigned char>(name[i]);
    if (c < 0x20 || c == 0x7F) return true;
    if (c == 0xC2 && static_cast<unsigned char>(name[i + 1]) < 0xA0) return true; // U+0080 to U+009F
  }
  if (name.empty() || name[0] == '/') return true;
  for (size_t i = name.find(".."); i != std::string_view::npos; i = name.find("..", i + 1))
    if ((i == 0 || name[i - 1] == '/') && (i + 2 == name.size() || name[i + 2] == '/')) return true;
  return false;
}

} // namespace

SafetensorsHeader::SafetensorsHeader(std::vector<Dtype> dtypes, uint64_t length) : dtypes_(std::move(dtypes)) {
  const uint64_t most = length / kShortestEntry + 1; // memory that nobody writes to costs nothing
  for (auto* each : {&name_ends_, &dims_ends_}) each->reserve(most);
  begins_.reserve(most), dtypes_of_.reserve(most), dims_.reserve(most), names_.reserve(length / 4);
  pending_.reserve(std::min(length, 2 * kLongestEntry));
}

void SafetensorsHeader::feed(std::string_view bytes, bool last) {
  pending_.append(bytes);
  if (!last && pending_.size() < patience_) return;
  Parser in(pending_, consumed_, last);
  uint64_t done = 0;
  try {
    while (step(in)) done = in.position();
    done = in.position();
    patience_ = 0;
  } catch (const Incomplete&) {
    const uint64_t left = pending_.size() - done;
    if (left > kLongestEntry)
      in.fail("ST_JSON", "entries of at most " + std::to_string(kLongestEntry) + " bytes", "a longer one");
    patience_ = std::min(2 * left, kLongestEntry + 1); // so that a long entry is not begun again for each piece of it
  }
  consumed_ += done;
  pending_.erase(0, done);
}

// One step of the outermost object; false behind its end. What it has changed stays so only if it comes to its end.
bool SafetensorsHeader::step(Parser& in) {
  if (next_ == Next::kOpen) {
    const char first = in.peek("'{'");
    if (first == ' ' || first == '\t' || first == '\n' || first == '\r')
      in.fail("ST_BRACE", "a header that begins with '{'", "white space");
    in.need('{', "'{'");
    next_ = Next::kFirst;
    return true;
  }
  in.skip_space();
  if (next_ == Next::kNothing) {
    if (!in.at_end()) in.fail_json("spaces, or the end of the header");
    return false;
  }
  if (next_ == Next::kFirst || next_ == Next::kComma) {
    if (in.take('}', "an entry or '}'")) {
      next_ = Next::kNothing;
    } else if (next_ == Next::kComma) {
      in.need(',', "',' or '}'");
      next_ = Next::kEntry;
    } else {
      next_ = Next::kEntry;
    }
    return true;
  }
  entry(in);
  next_ = Next::kComma;
  return true;
}

void SafetensorsHeader::entry(Parser& in) {
  const int64_t start = in.offset();
  const std::string name = in.string("a name", "ST_NAME");
  in.skip_space();
  in.need(':', "':'");
  in.skip_space();
  in.field = name;
  if (name == "__metadata__") {
    if (has_metadata_) in.fail("ST_DUP", "each name once", "__metadata__ twice");
    read_metadata(in);
    has_metadata_ = true;
  } else {
    if (bad_name(name)) throw Fault{"ST_NAME", "header", "a plain name", clipped(name), start};
    tensor(in, name);
  }
  in.field = "header";
}

void SafetensorsHeader::read_metadata(Parser& in) {
  std::map<std::string, std::string> found;
  in.need('{', "names and texts");
  in.skip_space();
  for (bool first = true; !in.take('}', "',' or '}'"); first = false) {
    if (!first) in.need(',', "',' or '}'");
    in.skip_space();
    std::string key = in.string("a name", "ST_JSON");
    in.skip_space();
    in.need(':', "':'");
    in.skip_space();
    if (!found.emplace(key, in.string("a text", "ST_JSON")).second)
      in.fail("ST_DUP", "each name once", clipped(key) + " twice");
    in.skip_space();
  }
  metadata_ = std::move(found);
}

void SafetensorsHeader::tensor(Parser& in, const std::string& name) {
  const int64_t start = in.offset();
  auto numbers = [&](std::vector<uint64_t>& found, const char* what, const char* negative) {
    in.need('[', what);
    in.skip_space();
    for (bool first = true; !in.take(']', "',' or ']'"); first = false) {
      if (!first) in.need(',', "',' or ']'");
      in.skip_space();
      found.push_back(in.number("a whole number", negative));
      if (found.size() > kMostDims) in.fail("ST_NDIMS", "at most " + std::to_string(kMostDims) + " numbers", "more");
      in.skip_space();
    }
  };
  std::string dtype;
  auto& [shape, offsets] = numbers_;
  shape.clear(), offsets.clear();
  unsigned seen = 0;
  in.need('{', "an object");
  in.skip_space();
  for (bool first = true; !in.take('}', "',' or '}'"); first = false) {
    if (!first) in.need(',', "',' or '}'");
    in.skip_space();
    const std::string key = in.string("a name", "ST_JSON");
    in.skip_space();
    in.need(':', "':'");
    in.skip_space();
    const unsigned bit = key == "dtype" ? 1 : key == "shape" ? 2 : key == "data_offsets" ? 4 : 0;
    const char value = in.peek("a value");
    if (!bit && (value == '{' || value == '[')) in.fail("ST_JSON", "dtype, shape or data_offsets", clipped(key));
    if (!bit) in.fail("ST_EXTRA", "dtype, shape or data_offsets", clipped(key));
    if (seen & bit) in.fail("ST_DUP", "each field once", clipped(key) + " twice");
    seen |= bit;
    if (bit == 1) dtype = in.string("the name of a dtype", "ST_JSON");
    if (bit == 2) numbers(shape, "a list of sizes", "ST_JSON");
    if (bit == 4) numbers(offsets, "two offsets", "ST_OFFS");
    in.skip_space();
  }
  if (seen != 7) in.fail("ST_JSON", "dtype, shape and data_offsets", "not all of them");
  if (offsets.size() != 2) in.fail("ST_JSON", "two offsets", list(offsets));
  const auto known =
      std::find_if(dtypes_.begin(), dtypes_.end(), [&](const Dtype& each) { return each.name == dtype; });
  if (known == dtypes_.end()) in.fail("ST_DTYPE", "a known dtype", clipped(dtype));
  add(name, *known, shape, offsets[0], offsets[1], start);
}

void SafetensorsHeader::add(const std::string& name, const Dtype& dtype, const std::vector<uint64_t>& shape,
                            uint64_t begin, uint64_t end, int64_t offset) {
  auto fail = [&](const char* code, std::string expected, std::string found) {
    throw Fault{code, name, std::move(expected), std::move(found), offset};
  };
  const auto most = [](const char* what) { return "at most " + std::to_string(kLimit) + what; };
  uint64_t elements = 1, extent = 1; // extent: with 1 for 0, as torch multiplies strides
  for (const uint64_t dim : shape) {
    if (dim > kLimit || (dim && extent > kLimit / dim)) fail("ST_OVF", most(" elements"), list(shape));
    elements *= dim;
    extent *= std::max<uint64_t>(dim, 1);
  }
  if (dtype.block > 1 && (shape.empty() || shape.back() % dtype.block))
    fail("ST_SUBBYTE", "rows of a multiple of " + std::to_string(dtype.block) + " elements", list(shape));
  if (elements / dtype.block > kLimit / dtype.bytes) fail("ST_OVF", most(" bytes"), list(shape));
  const uint64_t bytes = elements / dtype.block * dtype.bytes;
  if (begin > end || end > kLimit) fail("ST_OFFS", "two offsets, the smaller first", list({begin, end}));
  if (end - begin != bytes) fail("ST_SIZE", std::to_string(bytes) + " bytes", std::to_string(end - begin));
  names_ += name;
  for (const uint64_t dim : shape) dims_.push_back(static_cast<int64_t>(dim));
  name_ends_.push_back(static_cast<uint32_t>(names_.size()));
  dims_ends_.push_back(static_cast<uint32_t>(dims_.size()));
  begins_.push_back(begin);
  dtypes_of_.push_back(static_cast<uint8_t>(&dtype - dtypes_.data()));
}

void SafetensorsHeader::finish(uint64_t room) {
  const auto fail = [&](const char* code, uint64_t i, std::string expected, std::string found) {
    throw Fault{code, i < size() ? std::string(name(i)) : "data", std::move(expected), std::move(found), -1};
  };
  std::vector<uint32_t> order(size());
  std::iota(order.begin(), order.end(), 0u);
  const auto by_place = [&](uint32_t a, uint32_t b) {
    return begins_[a] != begins_[b] ? begins_[a] < begins_[b] : bytes(a) < bytes(b);
  };
  if (!std::is_sorted(order.begin(), order.end(), by_place)) std::sort(order.begin(), order.end(), by_place);
  uint64_t end = 0, before = 0;
  for (const uint32_t i : order) {
    const auto expected = [&](const char* more) { return "offset " + std::to_string(end) + more; };
    if (begins_[i] < end && name(i) == name(before)) fail("ST_DUP", i, "each name once", "two tensors of this name");
    if (begins_[i] < end) fail("ST_OVERLAP", i, expected(" or more"), std::to_string(begins_[i]));
    if (begins_[i] > end) fail("ST_HOLE", i, expected(""), std::to_string(begins_[i]));
    end += bytes(i), before = i;
  }
  if (end > room) fail("ST_TRUNC", size(), std::to_string(end) + " bytes of data", std::to_string(room));
  if (end < room) fail("ST_TRAILING", size(), std::to_string(end) + " bytes of data", std::to_string(room));

  by_name_.resize(size());
  std::iota(by_name_.begin(), by_name_.end(), 0u);
  const auto by_name = [&](uint32_t a, uint32_t b) { return name(a) < name(b); };
  if (!std::is_sorted(by_name_.begin(), by_name_.end(), by_name)) std::sort(by_name_.begin(), by_name_.end(), by_name);
  const auto same = [&](uint32_t a, uint32_t b) { return name(a) == name(b); };
  const auto twice = std::adjacent_find(by_name_.begin(), by_name_.end(), same);
  if (twice != by_name_.end()) fail("ST_DUP", *twice, "each name once", "two tensors of this name");
}

std::string_view SafetensorsHeader::name(uint64_t i) const {
  const uint32_t from = i ? name_ends_[i - 1] : 0;
  return std::string_view(names_).substr(from, name_ends_[i] - from);
}

std::vector<int64_t> SafetensorsHeader::shape(uint64_t i) const {
  return {dims_.begin() + (i ? dims_ends_[i - 1] : 0), dims_.begin() + dims_ends_[i]};
}

uint64_t SafetensorsHeader::bytes(uint64_t i) const {
  uint64_t elements = 1;
  for (uint32_t d = i ? dims_ends_[i - 1] : 0; d < dims_ends_[i]; ++d) elements *= static_cast<uint64_t>(dims_[d]);
  return elements / dtype(i).block * dtype(i).bytes;
}

int64_t SafetensorsHeader::find(std::string_view wanted) const {
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), wanted,
                                   [&](uint32_t i, std::string_view each) { return name(i) < each; });
  return at != by_name_.end() && name(*at) == wanted ? static_cast<int64_t>(*at) : -1;
}

} // namespace foundry::loaders
