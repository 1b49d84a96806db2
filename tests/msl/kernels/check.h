// Self-checking kernels: CHECK notes the line of the first failure in `failed`.
#pragma once
#include <metal_stdlib>
using namespace metal;

#define CHECK(...)                                                                                                     \
  if (!(__VA_ARGS__)) {                                                                                                \
    uint none = 0;                                                                                                     \
    atomic_compare_exchange_weak_explicit(failed, &none, uint(__LINE__), memory_order_relaxed, memory_order_relaxed);  \
  }
