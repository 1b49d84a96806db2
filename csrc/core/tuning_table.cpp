#include "core/tuning_table.h"

namespace foundry::tuning {
namespace {

constexpr int64_t kAny = INT64_MAX;
constexpr Op kLinear = Op::linear, kNorm = Op::norm_linear,
             kAttention = Op::attention; // kNorm: else as kLinear; moe_glu: as kNorm; moe_down: as kLinear

// clang-format off
constexpr Line kLines[] = {
    // The host executor: few, long-lived simdgroups, no split, whose barrier would switch fibers, chains that
    // the compiler makes vectors of.
    {"host", kLinear, "", 8, kAny, kAny, {4, 1, 1, 2, 4}},
    {"host", kLinear, "q8_0", 1, kAny, kAny, {8, 1, 1, 2, 4}},
    {"host", kLinear, "q4_0", 1, kAny, kAny, {8, 1, 1, 2, 4}},
    {"host", kLinear, "", 1, kAny, kAny, {4, 1, 1, 2, 4}},
    {"host", kNorm, "", 8, kAny, kAny, {4, 1, 1, 2, 4}}, // more outputs, for which x is weighted once
    {"host", kNorm, "", 1, kAny, kAny, {8, 1, 1, 2, 4}},
    {"host", kAttention, "", 1, kAny, kAny, {256, 4, 1, 256, 1}},

    // Apple GPUs, from published designs and `make agx`; nothing here has been measured by us.
    // Packed codes are read when they are used, and eight rows share two outputs: else there are too few registers.
    // Four outputs, of which a step's instructions are the fewest; of few outputs two (llama.cpp, Q8_0), and K is split
    // where each of four simdgroups has something of it.
    {"apple", kLinear, "q8_0", 8, kAny, kAny, {2, 0, 1, 4, 1}},
    {"apple", kLinear, "q8_0", 1, 2048, 1024, {2, 0, 1, 4, 1}},
    {"apple", kLinear, "q8_0", 1, 2048, kAny, {2, 0, 4, 4, 1}},
    {"apple", kLinear, "q8_0", 1, kAny, kAny, {4, 0, 1, 4, 1}},
    {"apple", kLinear, "q4_0", 8, kAny, kAny, {2, 0, 1, 2, 1}},
    {"apple", kLinear, "q4_0", 1, kAny, kAny, {4, 0, 1, 2, 1}}, // llama.cpp
    {"apple", kLinear, "packed", 4, kAny, kAny, {2, 0, 1, 8, 1}},
    {"apple", kLinear, "packed", 1, 1024, kAny, {2, 0, 4, 4, 1}},
    {"apple", kLinear, "packed", 1, kAny, kAny, {4, 0, 1, 8, 1}},
    // MLX, dense: four rows; K is split over eight simdgroups where it is 16 times N, else eight simdgroups from N = 4096
    // and four below. llama.cpp, dense, for few outputs: two rows, four simdgroups share K.
    {"apple", kLinear, "", 1, 1024, kAny, {2, 1, 4, 4, 1}},
    {"apple", kLinear, "", 1, 2048, kAny, {4, 1, 1, 4, 1}},
    {"apple", kLinear, "", 1, kAny, kAny, {4, 1, 1, 8, 1}},
    // MLX and torch split long caches over 32 or 64 threadgroups a head on base and Pro chips: some 1000 keys each at 32 K.
    {"apple", kAttention, "", 1, kAny, kAny, {256, 4, 8, 1024, 64}},

    // NVIDIA H100: few lines that stay within 8 % (packed formats but q8_0 and q4_0: 15 %) of the fastest variant at nearly every shape of Qwen2.5-0.5B,
    // Llama-3.2-1B, Qwen3-4B and Llama-3-8B (benchmarks/RESULTS.md). The last of them are for f16 and bf16.
    {"sm_90", kLinear, "q8_0", 8, kAny, kAny, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 4, 1024, 1024, {1, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 4, 8192, 1024, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 4, 2048, 8192, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 4, kAny, kAny, {4, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 2, 1024, 8192, {1, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 2, 4096, 4096, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 2, 2048, 8192, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 2, kAny, kAny, {4, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 1, 2048, 1024, {1, 1, 2, 4, 1}},
    {"sm_90", kLinear, "q8_0", 1, 16384, 1024, {1, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 1, kAny, 1024, {2, 1, 1, 2, 1}},
    {"sm_90", kLinear, "q8_0", 1, 1024, 8192, {1, 1, 4, 4, 1}},
    {"sm_90", kLinear, "q8_0", 1, 4096, 4096, {1, 1, 1, 2, 1}},
    {"sm_90", kLinear, "q8_0", 1, 8192, 4096, {2, 1, 1, 2, 1}},
    {"sm_90", kLinear, "q8_0", 1, 4096, 16384, {2, 1, 2, 4, 1}},
    {"sm_90", kLinear, "q8_0", 1, kAny, kAny, {1, 2, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 8, kAny, kAny, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 4, 2048, 2048, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 4, 1024, 8192, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 4, kAny, kAny, {4, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 2, 8192, 1024, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 2, kAny, 1024, {8, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 2, 1024, 8192, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 2, kAny, kAny, {4, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, 1024, 1024, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, 1024, 8192, {1, 1, 4, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, 2048, 2048, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, 2048, 8192, {4, 1, 4, 8, 1}},
    {"sm_90", kLinear, "q4_0", 1, 4096, 4096, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, 4096, 16384, {4, 1, 2, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, 8192, 1024, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, kAny, kAny, {4, 1, 1, 2, 1}},
    {"sm_90", kLinear, "q4_k", 1, 1024, 8192, {2, 1, 2, 4, 1}},
    {"sm_90", kLinear, "q4_k", 1, 4096, 4096, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_k", 1, 4096, 16384, {4, 1, 2, 4, 1}},
    {"sm_90", kLinear, "q4_k", 1, kAny, kAny, {4, 1, 1, 2, 1}},
    {"sm_90", kLinear, "packed", 1, kAny, kAny, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "f32", 4, 1024, 1024, {1, 1, 1, 4, 1}},
    {"sm_90", kLinear, "f32", 4, 4096, 16384, {2, 2, 1, 4, 1}},
    {"sm_90", kLinear, "f32", 4, kAny, kAny, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "f32", 1, 4096, 16384, {1, 4, 2, 4, 1}},
    {"sm_90", kLinear, "f32", 1, 16384, 1024, {2, 1, 2, 4, 1}},
    {"sm_90", kLinear, "f32", 1, 16384, 4096, {1, 1, 4, 4, 1}},
    {"sm_90", kLinear, "f32", 1, kAny, kAny, {1, 1, 2, 8, 1}},
    {"sm_90", kLinear, "", 8, 1024, 1024, {1, 1, 1, 4, 1}},
    {"sm_90", kLinear, "", 8, 2048, 2048, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "", 8, 1024, 8192, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "", 8, kAny, kAny, {4, 1, 1, 4, 1}},
    {"sm_90", kLinear, "", 4, 1024, 8192, {1, 1, 1, 4, 1}},
    {"sm_90", kLinear, "", 4, 2048, 2048, {2, 2, 1, 4, 1}},
    {"sm_90", kLinear, "", 4, 4096, 16384, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "", 4, kAny, kAny, {4, 1, 1, 4, 1}},
    {"sm_90", kLinear, "", 2, 8192, 1024, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "", 2, 8192, 2048, {2, 2, 1, 4, 1}},
    {"sm_90", kLinear, "", 2, 4096, 16384, {2, 2, 1, 4, 1}},
    {"sm_90", kLinear, "", 2, kAny, kAny, {4, 1, 1, 4, 1}},
    {"sm_90", kLinear, "", 1, 4096, 4096, {1, 4, 2, 8, 1}},
    {"sm_90", kLinear, "", 1, 2048, 8192, {1, 4, 4, 4, 1}},
    {"sm_90", kLinear, "", 1, 16384, 1024, {4, 1, 2, 8, 1}},
    {"sm_90", kLinear, "", 1, kAny, 1024, {4, 1, 1, 4, 1}},
    {"sm_90", kLinear, "", 1, 8192, 2048, {1, 4, 1, 4, 1}},
    {"sm_90", kLinear, "", 1, 8192, 16384, {1, 2, 4, 4, 1}},
    {"sm_90", kLinear, "", 1, kAny, kAny, {2, 4, 2, 4, 1}},
    {"sm_90", kNorm, "", 8, kAny, 1024, {2, 1, 1, 8, 1}},
    {"sm_90", kNorm, "", 4, kAny, kAny, {4, 1, 1, 8, 1}},
    {"sm_90", kNorm, "", 2, kAny, kAny, {2, 1, 1, 8, 1}},
    {"sm_90", kNorm, "f16", 1, 2048, 1024, {2, 2, 4, 4, 1}},
    {"sm_90", kNorm, "f16", 1, 16384, 1024, {2, 2, 1, 8, 1}},
    {"sm_90", kNorm, "f16", 1, kAny, kAny, {2, 4, 2, 4, 1}},
    {"sm_90", kNorm, "bf16", 1, kAny, kAny, {2, 2, 2, 4, 1}},
    {"sm_90", kNorm, "q8_0", 1, 2048, 1024, {2, 2, 4, 4, 1}},
    {"sm_90", kNorm, "q8_0", 1, 16384, 1024, {2, 1, 1, 4, 1}},
    {"sm_90", kNorm, "q8_0", 1, kAny, kAny, {2, 1, 2, 4, 1}},
    {"sm_90", kNorm, "q4_0", 1, 2048, 1024, {2, 1, 2, 4, 1}},
    {"sm_90", kNorm, "q4_0", 1, kAny, 1024, {2, 1, 1, 4, 1}},
    {"sm_90", kNorm, "q4_0", 1, kAny, kAny, {4, 1, 1, 2, 1}},
    {"sm_90", kNorm, "q4_k", 1, kAny, kAny, {4, 1, 1, 2, 1}},
    {"sm_90", kNorm, "packed", 1, kAny, kAny, {2, 1, 1, 4, 1}},
    {"sm_90", kAttention, "", 1, 64, kAny, {128, 4, 8, 256, 256}},
    {"sm_90", kAttention, "", 1, kAny, kAny, {128, 4, 32, 512, 256}},

    // Any other GPU.
    {"", kLinear, "packed", 1, kAny, kAny, {2, 1, 1, 4, 1}},
    {"", kLinear, "", 1, 2048, kAny, {2, 2, 4, 8, 1}},
    {"", kLinear, "", 4, kAny, kAny, {4, 1, 1, 4, 1}},
    {"", kLinear, "", 1, kAny, kAny, {2, 2, 2, 4, 1}},
    {"", kAttention, "", 1, kAny, kAny, {256, 4, 8, 1024, 64}},
};
// clang-format on

} // namespace

c10::ArrayRef<Line> built_in() { return kLines; }

} // namespace foundry::tuning
