// The registry of packed KV-cache formats: policy that kernels read with (its writer is policy##Out), name, bits of a
// code (4 or 8), and whether codes go equally far in both directions. If not, the scale's sign is that of the largest
// value, which then has the lowest code. Host, kernels and Python have no other list. Layout: kv_store.h.
#pragma once

#define FOUNDRY_KV_FORMATS(FORMAT)                                                                                     \
  FORMAT(Q8Kv, q8_0, 8, true)                                                                                          \
  FORMAT(Q4Kv, q4_0, 4, false)
