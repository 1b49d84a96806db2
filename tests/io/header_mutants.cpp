// Feeds mutated headers, in pieces of all sizes, to the reader of safetensors headers; built with sanitizers by
// test_header_mutants.py. Prints how many were taken and refused. header_mutants COUNT SEED
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "loaders/safetensors_header.h"

using foundry::loaders::Dtype;
using foundry::loaders::Fault;
using foundry::loaders::SafetensorsHeader;

static uint64_t state;
static uint64_t random_below(uint64_t n) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return state % n;
}

static const std::vector<std::string> kSeeds = {
    R"({"__metadata__":{"format":"pt","\u00e4":"\ud834\udd1e"},"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})",
    R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"shape":[],"data_offsets":[4,8],"dtype":"F32"}}   )",
    R"({"x":{"dtype":"F4","shape":[3,4],"data_offsets":[0,6]},"y":{"dtype":"F32","shape":[0],"data_offsets":[6,6]}})"};
static const std::vector<std::string> kTokens = {"{",
                                                 "}",
                                                 "[",
                                                 "]",
                                                 ",",
                                                 ":",
                                                 "\"",
                                                 "\\",
                                                 "\\u",
                                                 "\\ud800",
                                                 "\\udc00",
                                                 "0",
                                                 "-",
                                                 "18446744073709551615",
                                                 "9223372036854775807",
                                                 "9223372036854775808",
                                                 "1e9",
                                                 "\"dtype\"",
                                                 "\"shape\"",
                                                 "\"data_offsets\"",
                                                 "\"__metadata__\"",
                                                 "F64",
                                                 " ",
                                                 "\n",
                                                 "\xc3",
                                                 "\xa4",
                                                 "\xf0\x9d\x84\x9e",
                                                 "\xed\xa0\x80",
                                                 "\xff",
                                                 "..",
                                                 "/",
                                                 "true",
                                                 "null",
                                                 "a"};

static std::string mutant() {
  std::string text = kSeeds[random_below(kSeeds.size())];
  for (uint64_t n = random_below(4); n-- > 0;) {
    const size_t at = random_below(text.size() + 1);
    const std::string& token = kTokens[random_below(kTokens.size())];
    switch (random_below(6)) {
    case 0: text.insert(at, token); break;
    case 1: text.erase(at, random_below(8)); break;
    case 2: text.replace(at, random_below(4), token); break;
    case 3: text.resize(at); break;
    case 4: text.insert(at, text.substr(random_below(text.size() + 1), random_below(40))); break;
    default:
      if (at < text.size()) text[at] = static_cast<char>(random_below(256));
    }
  }
  return text;
}

// The code of the fault, or what was read; the same however the text is cut into pieces.
static std::string outcome(const std::string& text, uint64_t piece, uint64_t room) {
  SafetensorsHeader header({{"F32", 1, 4}, {"F64", 1, 8}, {"U8", 1, 1}, {"F4", 2, 1}}, text.size());
  try {
    uint64_t at = 0;
    do {
      // a copy of its own, so that a byte too far is past the end of an allocation
      const std::vector<char> part(text.begin() + at, text.begin() + std::min<uint64_t>(at + piece, text.size()));
      header.feed({part.data(), part.size()}, at + piece >= text.size());
      at += piece;
    } while (at < text.size());
    header.finish(room);
    std::string found = "taken";
    for (uint64_t i = 0; i < header.size(); ++i) {
      if (header.find(header.name(i)) != static_cast<int64_t>(i)) std::abort();
      found += " " + std::string(header.name(i)) + std::to_string(header.bytes(i));
      for (int64_t dim : header.shape(i)) found += "," + std::to_string(dim);
    }
    return found;
  } catch (const Fault& fault) {
    return fault.code + fault.field + std::to_string(fault.offset);
  }
}

int main(int, char** argv) {
  const uint64_t count = std::strtoull(argv[1], nullptr, 10);
  state = std::strtoull(argv[2], nullptr, 10) * 2654435761u + 88172645463325252u;
  uint64_t taken = 0;
  std::set<std::string> codes;
  for (uint64_t i = 0; i < count; ++i) {
    const std::string text = mutant();
    const uint64_t room = random_below(20) ? std::vector<uint64_t>{16, 8, 6}[random_below(3)] : random_below(20);
    const std::string whole = outcome(text, text.size() + 1, room), pieces = outcome(text, 1 + random_below(40), room);
    if (whole != pieces) {
      std::printf("differs: %s\n%s\n%s\n", text.c_str(), whole.c_str(), pieces.c_str());
      return 1;
    }
    taken += whole.rfind("taken", 0) == 0;
    if (whole.rfind("ST_", 0) == 0)
      codes.insert(whole.substr(0, whole.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")));
  }
  std::printf("%llu taken, %zu codes\n", static_cast<unsigned long long>(taken), codes.size());
}
