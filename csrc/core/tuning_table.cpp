#include "core/tuning_table.h"

namespace foundry::tuning {
namespace {

constexpr int64_t kAny = INT64_MAX;
// kNorm: else as kLinear; kGlu: as kNorm; kDown: as kLinear
constexpr Op kLinear = Op::linear, kNorm = Op::norm_linear, kGlu = Op::moe_glu, kDown = Op::moe_down,
             kAttention = Op::attention, kRoutes = Op::linear_routes;

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
    // Packed codes are read when they are used, and several rows share two outputs (of q8_0, which needs the fewest
    // registers, eight rows): else there are too few registers. Four outputs of a row, of which a step's instructions are
    // the fewest; of few outputs two (llama.cpp, Q8_0), and K is split where each simdgroup has a step of it: 512 of
    // q8_0 and mxfp4, 1024 of K-quants and most others. Threadgroups of two simdgroups (llama.cpp; MLX) leave the fewest
    // registers unused: q5_k has room for 448 threads, of which a threadgroup of 256 would take 256.
    {"apple", kLinear, "q8_0", 8, kAny, kAny, {2, 0, 1, 4, 1}},
    {"apple", kLinear, "q8_0", 1, 2048, 1024, {2, 0, 1, 4, 1}},
    {"apple", kLinear, "q8_0", 1, 2048, kAny, {2, 0, 4, 4, 1}},
    {"apple", kLinear, "q8_0", 1, kAny, kAny, {4, 0, 1, 4, 1}},
    {"apple", kLinear, "q4_0", 2, kAny, kAny, {2, 0, 1, 2, 1}},
    {"apple", kLinear, "q4_0", 1, kAny, kAny, {4, 0, 1, 2, 1}}, // llama.cpp
    {"apple", kLinear, "mxfp4", 2, kAny, kAny, {2, 0, 1, 2, 1}},
    {"apple", kLinear, "mxfp4", 1, 1024, 512, {2, 0, 1, 4, 1}},
    {"apple", kLinear, "mxfp4", 1, 1024, 1024, {2, 0, 2, 4, 1}},
    {"apple", kLinear, "mxfp4", 1, 1024, kAny, {2, 0, 4, 4, 1}},
    {"apple", kLinear, "mxfp4", 1, kAny, kAny, {4, 0, 1, 2, 1}},
    {"apple", kLinear, "packed", 2, kAny, kAny, {2, 0, 1, 2, 1}},
    {"apple", kLinear, "packed", 1, 1024, 1024, {2, 0, 1, 4, 1}},
    {"apple", kLinear, "packed", 1, 1024, 2048, {2, 0, 2, 4, 1}},
    {"apple", kLinear, "packed", 1, 1024, kAny, {2, 0, 4, 4, 1}},
    {"apple", kLinear, "packed", 1, kAny, kAny, {4, 0, 1, 2, 1}},
    // MLX, dense: four rows; K is split over eight simdgroups where it is 16 times N, else eight simdgroups from N = 4096
    // and four below. llama.cpp, dense, for few outputs: two rows, four simdgroups share K.
    {"apple", kLinear, "", 1, 1024, kAny, {2, 1, 4, 4, 1}},
    {"apple", kLinear, "", 1, 2048, kAny, {4, 1, 1, 4, 1}},
    {"apple", kLinear, "", 1, kAny, kAny, {4, 1, 1, 8, 1}},
    // MLX and torch split long caches over 32 or 64 threadgroups a head on base and Pro chips: some 1000 keys each at 32 K.
    {"apple", kAttention, "", 1, kAny, kAny, {256, 4, 8, 1024, 64}},

    // NVIDIA H100: few lines that stay within 8 % (packed formats but q8_0 and q4_0: 15 %) of the fastest variant at nearly every shape of Qwen2.5-0.5B,
    // Llama-3.2-1B, Qwen3-4B and Llama-3-8B (benchmarks/RESULTS.md). The last of them are for f16 and bf16.
    // NVIDIA H200, one row: few lines within 11 % of the fastest of the same models' variants in the formats named, but
    // for shapes that share a bucket, 4096x4096 and 2560x4096 (13 %, q4_k 20 %), and small experts (19 %); decision 018.
    // More rows have the H100's lines; where those are also one row's, they are repeated as lines for 2 rows.
    {"sm_90", kLinear, "q8_0", 8, kAny, kAny, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 4, 1024, 1024, {1, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 4, 8192, 1024, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 4, 2048, 8192, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 4, kAny, kAny, {4, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 2, 1024, 8192, {1, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 2, 4096, 4096, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 2, 2048, 8192, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 2, kAny, kAny, {4, 1, 1, 4, 1}},
    {"sm_90-h200", kLinear, "q8_0", 1, 1024, 8192, {1, 1, 4, 8, 1}},
    {"sm_90-h200", kLinear, "q8_0", 1, 2048, 8192, {1, 1, 2, 16, 1}},
    {"sm_90-h200", kLinear, "q8_0", 1, 4096, 4096, {1, 1, 2, 4, 1}},
    {"sm_90-h200", kLinear, "q8_0", 1, 4096, kAny, {4, 1, 4, 4, 1}},
    {"sm_90-h200", kLinear, "q8_0", 1, 16384, kAny, {2, 1, 1, 8, 1}},
    {"sm_90-h200", kLinear, "q8_0", 1, kAny, kAny, {4, 1, 1, 2, 1}},
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
    {"sm_90-h200", kLinear, "q4_0", 1, 1024, 8192, {1, 1, 4, 8, 1}},
    {"sm_90-h200", kLinear, "q4_0", 1, 2048, 2048, {4, 0, 4, 4, 1}},
    {"sm_90-h200", kLinear, "q4_0", 1, 4096, 4096, {4, 1, 2, 2, 1}},
    {"sm_90-h200", kLinear, "q4_0", 1, 4096, kAny, {4, 1, 4, 4, 1}},
    {"sm_90-h200", kLinear, "q4_0", 1, 16384, kAny, {4, 1, 1, 2, 1}},
    {"sm_90-h200", kLinear, "q4_0", 1, kAny, kAny, {8, 0, 1, 2, 1}},
    {"sm_90", kLinear, "q4_0", 1, 1024, 1024, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, 1024, 8192, {1, 1, 4, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, 2048, 2048, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, 2048, 8192, {4, 1, 4, 8, 1}},
    {"sm_90", kLinear, "q4_0", 1, 4096, 4096, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, 4096, 16384, {4, 1, 2, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, 8192, 1024, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, kAny, kAny, {4, 1, 1, 2, 1}},
    {"sm_90-h200", kLinear, "q4_k", 2, 4096, 4096, {2, 1, 1, 4, 1}},
    {"sm_90-h200", kLinear, "q4_k", 2, kAny, kAny, {4, 1, 1, 4, 1}},
    {"sm_90-h200", kLinear, "packed", 2, kAny, kAny, {2, 1, 1, 4, 1}},
    {"sm_90-h200", kLinear, "q4_k", 1, 1024, 8192, {2, 1, 4, 4, 1}},
    {"sm_90-h200", kLinear, "q4_k", 1, 2048, 8192, {4, 0, 4, 4, 1}},
    {"sm_90-h200", kLinear, "q4_k", 1, 4096, 4096, {4, 0, 2, 8, 1}},
    {"sm_90-h200", kLinear, "q4_k", 1, 4096, kAny, {2, 1, 2, 4, 1}},
    {"sm_90-h200", kLinear, "q4_k", 1, 16384, kAny, {4, 0, 1, 4, 1}},
    {"sm_90-h200", kLinear, "q4_k", 1, kAny, kAny, {8, 0, 1, 2, 1}},
    {"sm_90-h200", kLinear, "q6_k", 1, 4096, kAny, {2, 0, 2, 4, 1}},
    {"sm_90-h200", kLinear, "q6_k", 1, kAny, kAny, {8, 0, 1, 2, 1}},
    {"sm_90-h200", kLinear, "mxfp4", 1, 4096, 4096, {4, 0, 4, 4, 1}},
    {"sm_90-h200", kLinear, "mxfp4", 1, 4096, kAny, {2, 1, 4, 8, 1}},
    {"sm_90-h200", kLinear, "mxfp4", 1, kAny, kAny, {8, 0, 1, 2, 1}},
    {"sm_90-h200", kLinear, "affine4_g64_f16", 1, 1024, 8192, {1, 0, 4, 8, 1}},
    {"sm_90-h200", kLinear, "affine4_g64_f16", 1, 4096, 4096, {4, 1, 2, 4, 1}},
    {"sm_90-h200", kLinear, "affine4_g64_f16", 1, 4096, kAny, {4, 1, 2, 16, 1}},
    {"sm_90-h200", kLinear, "affine4_g64_f16", 1, kAny, kAny, {8, 1, 1, 2, 1}},
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
    {"sm_90-h200", kLinear, "", 1, 2048, 8192, {2, 2, 4, 4, 1}},
    {"sm_90-h200", kLinear, "", 1, 16384, 4096, {1, 4, 2, 4, 1}},
    {"sm_90-h200", kLinear, "", 1, 16384, kAny, {1, 2, 4, 4, 1}},
    {"sm_90-h200", kLinear, "", 1, kAny, kAny, {4, 1, 1, 2, 1}},
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
    {"sm_90-h200", kNorm, "f16", 1, 2048, 1024, {2, 4, 4, 4, 1}},
    {"sm_90-h200", kNorm, "f16", 1, 16384, 1024, {2, 1, 1, 8, 1}},
    {"sm_90-h200", kNorm, "f16", 1, 4096, 2048, {1, 1, 2, 8, 1}},
    {"sm_90-h200", kNorm, "f16", 1, kAny, kAny, {4, 2, 2, 2, 1}},
    {"sm_90-h200", kNorm, "bf16", 1, 2048, 1024, {2, 4, 4, 4, 1}},
    {"sm_90-h200", kNorm, "bf16", 1, 16384, 1024, {2, 1, 1, 8, 1}},
    {"sm_90-h200", kNorm, "bf16", 1, 4096, 2048, {1, 1, 2, 8, 1}},
    {"sm_90-h200", kNorm, "bf16", 1, kAny, kAny, {4, 2, 2, 2, 1}},
    {"sm_90-h200", kNorm, "q8_0", 1, 2048, 1024, {2, 2, 4, 4, 1}},
    {"sm_90-h200", kNorm, "q8_0", 1, 16384, 1024, {4, 0, 1, 4, 1}},
    {"sm_90-h200", kNorm, "q8_0", 1, 4096, 2048, {2, 1, 2, 8, 1}},
    {"sm_90-h200", kNorm, "q8_0", 1, 8192, 4096, {2, 1, 1, 8, 1}},
    {"sm_90-h200", kNorm, "q8_0", 1, kAny, kAny, {8, 1, 1, 2, 1}},
    {"sm_90-h200", kNorm, "q4_0", 1, 2048, 1024, {2, 1, 2, 8, 1}},
    {"sm_90-h200", kNorm, "q4_0", 1, 4096, 2048, {4, 0, 2, 4, 1}},
    {"sm_90-h200", kNorm, "q4_0", 1, 8192, 4096, {4, 1, 1, 2, 1}},
    {"sm_90-h200", kNorm, "q4_0", 1, kAny, kAny, {8, 0, 1, 4, 1}},
    {"sm_90-h200", kNorm, "q4_k", 1, 8192, 4096, {4, 1, 2, 4, 1}},
    {"sm_90-h200", kNorm, "q4_k", 1, kAny, kAny, {8, 0, 1, 4, 1}},
    {"sm_90-h200", kNorm, "q6_k", 1, kAny, kAny, {4, 0, 1, 4, 1}},
    {"sm_90-h200", kNorm, "mxfp4", 1, kAny, kAny, {4, 1, 1, 4, 1}},
    {"sm_90-h200", kNorm, "affine4_g64_f16", 1, 2048, 1024, {2, 0, 4, 4, 1}},
    {"sm_90-h200", kNorm, "affine4_g64_f16", 1, 8192, 4096, {4, 1, 1, 4, 1}},
    {"sm_90-h200", kNorm, "affine4_g64_f16", 1, kAny, kAny, {8, 0, 1, 2, 1}},
    {"sm_90-h200", kGlu, "q8_0", 1, 4096, kAny, {4, 1, 1, 8, 1}},
    {"sm_90-h200", kGlu, "mxfp4", 1, 4096, kAny, {2, 1, 1, 2, 1}},
    {"sm_90-h200", kGlu, "packed", 1, kAny, kAny, {4, 1, 1, 2, 1}},
    {"sm_90-h200", kDown, "packed", 1, 2048, 1024, {2, 1, 2, 8, 1}},
    {"sm_90-h200", kDown, "packed", 1, kAny, kAny, {4, 1, 2, 16, 1}},
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

    // More rows: linear_rows, linear_matrix and linear_tiles up to so many of x, then torch's product;
    // backward; and of an expert.
    // Apple: a tile of 32 rows costs what some 24 rows cost that share readings of eight, or fewer of those that aren't
    // unpacked; from 128 rows on, unpacking W for torch's product costs less than half of that. Not measured by us.
    {"apple", kRoutes, "packed", 1, kAny, kAny, {32, 0, 128, 16, 128}},
    {"apple", kRoutes, "", 1, kAny, kAny, {16, 0, 128, 16, 128}},
    // NVIDIA: decisions 008 and 035; matrix units that multiply 16x8x16 came after sm_75.
    {"sm_7", kRoutes, "packed", 1, kAny, kAny, {16, 0, 0, 16, 64}},
    {"sm_", kRoutes, "packed", 1, kAny, kAny, {16, 64, 0, 16, 64}},

    // Any other GPU.
    {"", kLinear, "packed", 1, kAny, kAny, {2, 1, 1, 4, 1}},
    {"", kLinear, "", 1, 2048, kAny, {2, 2, 4, 8, 1}},
    {"", kLinear, "", 4, kAny, kAny, {4, 1, 1, 4, 1}},
    {"", kLinear, "", 1, kAny, kAny, {2, 2, 2, 4, 1}},
    {"", kAttention, "", 1, kAny, kAny, {256, 4, 8, 1024, 64}},
    {"", kRoutes, "packed", 1, kAny, kAny, {16, 0, 0, 16, 64}},
    {"", kRoutes, "", 1, kAny, kAny, {8, 0, 0, 16, 64}},
};
// clang-format on

} // namespace

c10::ArrayRef<Line> built_in() { return kLines; }

} // namespace foundry::tuning
