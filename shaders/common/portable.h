// What lets one header compile as Metal Shading Language and as C++ (argument structs, tuning numbers, block layouts).
#pragma once

#ifdef __METAL_VERSION__
#include <metal_stdlib>
#define FOUNDRY_CONST static constant constexpr // a constant at namespace or class scope
typedef half foundry_half;                      // 16 bits of storage on both sides
#else
#include <cstdint>
#define FOUNDRY_CONST static constexpr
struct foundry_half {
  uint16_t bits;
};
#endif

static_assert(sizeof(foundry_half) == 2, "half is two bytes on both sides");

namespace foundry {
FOUNDRY_CONST uint32_t simd_width = 32; // lanes of a simdgroup on every Apple GPU
}
