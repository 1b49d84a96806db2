#include "core/tuning_table.h"

namespace foundry::tuning {
namespace {

constexpr int64_t kAny = INT64_MAX;
// kNorm: else as kLinear; kGlu: as kNorm; kDown: as kLinear
constexpr Op kLinear = Op::linear, kNorm = Op::norm_linear, kGlu = Op::moe_glu, kDown = Op::moe_down,
             kAttention = Op::attention, kRoutes = Op::linear_routes, kMatrices = Op::matrices,
             kNormMatrices = Op::norm_matrices, kMatrix = Op::linear_matrix, kMoeMatrix = Op::moe_matrix;

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
    {"host", kAttention, "", 1, kAny, kAny, {256, 4, 1, 256, 1, 16}},

    // Apple GPUs, from published designs and `make agx`; nothing here has been measured by us.
    // Packed codes are read when they are used, and several rows share two outputs (of q8_0, which needs the fewest
    // registers, eight rows): else there are too few registers. Four outputs of a row, of which a step's instructions are
    // the fewest; of few outputs two (llama.cpp, Q8_0), and K is split where each simdgroup has a step of it: 512 of
    // q8_0 and mxfp4, 1024 of K-quants and most others. Threadgroups of two simdgroups (llama.cpp; MLX) leave the fewest
    // registers unused: q5_k has room for 448 threads, of which a threadgroup of 256 would take 256.
    {"apple", kLinear, "q8_0", 8, kAny, kAny, {2, 0, 1, 4, 2}},
    {"apple", kLinear, "q8_0", 1, 2048, 1024, {2, 0, 1, 4, 2}},
    {"apple", kLinear, "q8_0", 1, 2048, 1536, {2, 0, 2, 4, 2}},
    {"apple", kLinear, "q8_0", 1, 2048, kAny, {2, 0, 4, 4, 2}},
    {"apple", kLinear, "q8_0", 1, kAny, kAny, {4, 0, 1, 4, 2}},
    {"apple", kLinear, "q4_0", 2, kAny, kAny, {2, 0, 1, 2, 2}},
    {"apple", kLinear, "q4_0", 1, kAny, kAny, {4, 0, 1, 2, 2}}, // llama.cpp
    {"apple", kLinear, "mxfp4", 2, kAny, kAny, {2, 0, 1, 2, 1}},
    {"apple", kLinear, "mxfp4", 1, 1024, 768, {2, 0, 1, 4, 1}},
    {"apple", kLinear, "mxfp4", 1, 1024, 1536, {2, 0, 2, 4, 1}},
    {"apple", kLinear, "mxfp4", 1, 1024, kAny, {2, 0, 4, 4, 1}},
    {"apple", kLinear, "mxfp4", 1, kAny, kAny, {4, 0, 1, 2, 1}},
    {"apple", kLinear, "packed", 2, kAny, kAny, {2, 0, 1, 2, 2}},
    {"apple", kLinear, "packed", 1, 1024, 1536, {2, 0, 1, 4, 2}},
    {"apple", kLinear, "packed", 1, 1024, 3072, {2, 0, 2, 4, 2}},
    {"apple", kLinear, "packed", 1, 1024, kAny, {2, 0, 4, 4, 2}},
    {"apple", kLinear, "packed", 1, kAny, kAny, {4, 0, 1, 2, 2}},
    // Experts beside each other, as llama.cpp has them; four, whose K is a step of a simdgroup or few.
    {"apple", kDown, "packed", 1, kAny, kAny, {4, 0, 4, 4, 2}},
    // MLX, dense: four rows; K is split over eight simdgroups where it is 16 times N, else eight simdgroups from N = 4096
    // and four below. llama.cpp, dense, for few outputs: two rows, four simdgroups share K.
    {"apple", kLinear, "", 1, 1024, kAny, {2, 1, 4, 4, 1}},
    {"apple", kLinear, "", 1, 2048, kAny, {4, 1, 1, 4, 1}},
    {"apple", kLinear, "", 1, kAny, kAny, {4, 1, 1, 8, 1}},
    // MLX and torch split long caches over 32 or 64 threadgroups a head on base and Pro chips: some 1000 keys each at 32 K.
    {"apple", kAttention, "", 1, kAny, kAny, {256, 4, 8, 1024, 64, 4}},

    // NVIDIA H100: few lines that stay within 8 % (packed formats but q8_0 and q4_0: 15 %) of the fastest variant at nearly every shape of Qwen2.5-0.5B,
    // Llama-3.2-1B, Qwen3-4B and Llama-3-8B (benchmarks/RESULTS.md). The last of them are for f16 and bf16.
    // NVIDIA H200, one row: few lines within 11 % of the fastest of the same models' variants in the formats named, but
    // for shapes that share a bucket, 4096x4096 and 2560x4096 (13 %, q4_k 20 %), and small experts (19 %); decision 018.
    // More rows have the H100's lines.
    // Packed weights and several rows: measured on an H100 in q4_0, q8_0, q4_k, q6_k and mxfp4, within 25 % of the fastest
    // of 18 to 24 variants at each shape of Qwen2.5-0.5B and Llama-3-8B, half of them within 1 % (decision 048).
    {"sm_90", kLinear, "q8_0", 4, 1024, 1024, {1, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 4, 4096, kAny, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 4, kAny, kAny, {4, 0, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 2, 1024, 8192, {1, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 2, 4096, 4096, {2, 1, 1, 16, 1}},
    {"sm_90", kLinear, "q8_0", 2, 2048, 8192, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 2, kAny, kAny, {4, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q6_k", 2, 1024, kAny, {1, 0, 1, 4, 1}},
    {"sm_90", kLinear, "q6_k", 2, kAny, kAny, {2, 0, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 2, 4096, 8192, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 8, kAny, kAny, {4, 0, 1, 8, 1}},
    {"sm_90", kLinear, "q4_0", 4, kAny, kAny, {4, 0, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 2, 4096, kAny, {4, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 2, kAny, kAny, {8, 0, 1, 4, 1}},
    {"sm_90", kLinear, "q4_k", 8, 1024, kAny, {1, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_k", 8, kAny, kAny, {2, 0, 1, 4, 1}},
    {"sm_90", kLinear, "q4_k", 4, 1024, kAny, {1, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_k", 4, 4096, 8192, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_k", 4, kAny, kAny, {4, 0, 1, 4, 1}},
    {"sm_90", kLinear, "packed", 4, 1024, kAny, {1, 1, 1, 4, 1}},
    {"sm_90", kLinear, "packed", 4, 4096, kAny, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "packed", 8, kAny, kAny, {4, 0, 1, 8, 1}},
    {"sm_90", kLinear, "packed", 4, kAny, kAny, {4, 0, 1, 4, 1}},
    {"sm_90", kLinear, "packed", 2, 1024, kAny, {1, 1, 1, 8, 1}},
    {"sm_90", kLinear, "packed", 2, 4096, kAny, {2, 0, 1, 4, 1}},
    {"sm_90", kLinear, "packed", 2, kAny, kAny, {4, 0, 1, 4, 1}},
    {"sm_90", kNorm, "q8_0", 8, kAny, kAny, {2, 1, 1, 4, 1}},
    {"sm_90", kNorm, "q8_0", 4, kAny, kAny, {4, 0, 1, 4, 1}},
    {"sm_90", kNorm, "q6_k", 2, kAny, kAny, {2, 0, 1, 4, 1}},
    {"sm_90", kNorm, "packed", 8, kAny, kAny, {2, 0, 1, 8, 1}},
    {"sm_90", kNorm, "packed", 2, 2048, kAny, {2, 1, 1, 4, 1}},
    {"sm_90", kNorm, "packed", 2, kAny, kAny, {4, 0, 1, 4, 1}},
    {"sm_90-h200", kLinear, "q8_0", 1, 1024, 8192, {1, 1, 4, 8, 1}},
    {"sm_90-h200", kLinear, "q8_0", 1, 2048, 8192, {1, 1, 2, 16, 1}},
    {"sm_90-h200", kLinear, "q8_0", 1, 4096, 4096, {1, 1, 2, 4, 1}},
    {"sm_90-h200", kLinear, "q8_0", 1, 4096, 16384, {4, 1, 2, 8, 1}}, // decision 070
    {"sm_90-h200", kLinear, "q8_0", 1, 4096, kAny, {4, 1, 4, 4, 1}},
    {"sm_90-h200", kLinear, "q8_0", 1, 16384, kAny, {2, 1, 1, 8, 1}},
    {"sm_90-h200", kLinear, "q8_0", 1, kAny, kAny, {4, 1, 1, 2, 1}},
    {"sm_90", kLinear, "q8_0", 1, 2048, 1024, {1, 1, 2, 4, 1}},
    {"sm_90", kLinear, "q8_0", 1, 16384, 1024, {1, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q8_0", 1, kAny, 1024, {2, 1, 1, 2, 1}},
    {"sm_90", kLinear, "q8_0", 1, 1024, 8192, {1, 1, 4, 4, 1}},
    {"sm_90", kLinear, "q8_0", 1, 4096, 4096, {2, 1, 4, 8, 1}},
    {"sm_90", kLinear, "q8_0", 1, 8192, 4096, {2, 1, 1, 2, 1}},
    {"sm_90", kLinear, "q8_0", 1, 4096, 12288, {1, 1, 4, 4, 1}},
    {"sm_90", kLinear, "q8_0", 1, 4096, 16384, {2, 1, 2, 4, 1}},
    {"sm_90", kLinear, "q8_0", 1, kAny, kAny, {1, 2, 1, 4, 1}},
    {"sm_90-h200", kLinear, "q4_0", 1, 1024, 8192, {1, 1, 4, 8, 1}},
    {"sm_90-h200", kLinear, "q4_0", 1, 2048, 2048, {4, 0, 4, 4, 1}},
    {"sm_90-h200", kLinear, "q4_0", 1, 4096, 4096, {4, 1, 2, 2, 1}},
    {"sm_90-h200", kLinear, "q4_0", 1, 4096, kAny, {4, 1, 4, 4, 1}},
    {"sm_90-h200", kLinear, "q4_0", 1, 16384, kAny, {4, 1, 1, 2, 1}},
    {"sm_90-h200", kLinear, "q4_0", 1, kAny, kAny, {8, 0, 1, 2, 1}},
    {"sm_90", kLinear, "q4_0", 1, 1024, 1024, {1, 2, 2, 8, 1}},
    {"sm_90", kLinear, "q4_0", 1, 1024, 8192, {1, 1, 4, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, 2048, 2048, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, 2048, 8192, {4, 1, 4, 8, 1}},
    {"sm_90", kLinear, "q4_0", 1, 4096, 4096, {4, 1, 2, 2, 1}},
    {"sm_90", kLinear, "q4_0", 1, 4096, 16384, {4, 1, 2, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, 8192, 1024, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "q4_0", 1, kAny, kAny, {4, 1, 1, 2, 1}},
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
    {"sm_90", kLinear, "mxfp4", 1, 8192, kAny, {2, 1, 1, 4, 1}},
    {"sm_90", kLinear, "mxfp4", 1, kAny, 4096, {4, 1, 1, 2, 1}},
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
    {"sm_90-h200", kGlu, "mxfp4", 1, 4096, kAny, {2, 1, 1, 2, 1}},
    {"sm_90-h200", kGlu, "packed", 1, 8192, 4096, {8, 0, 1, 2, 1}},
    {"sm_90-h200", kGlu, "packed", 1, kAny, kAny, {4, 1, 1, 2, 1}},
    // A token's experts beside each other: measured on an H200, within 5 % of the fastest of some 100 variants, for any of
    // these GPUs, as all have its cores (decision 058).
    {"sm_90", kDown, "mxfp4", 1, 2048, 1024, {2, 1, 2, 8, 1}},
    {"sm_90", kDown, "mxfp4", 1, kAny, kAny, {8, 0, 4, 4, 1}},
    {"sm_90", kDown, "q4_k", 1, kAny, kAny, {4, 0, 4, 4, 1}},
    {"sm_90", kDown, "packed", 1, kAny, kAny, {4, 1, 4, 4, 1}},
    {"sm_90", kNorm, "f16", 1, 2048, 1024, {2, 2, 4, 4, 1}},
    {"sm_90", kNorm, "f16", 1, 16384, 1024, {2, 2, 1, 8, 1}},
    {"sm_90", kNorm, "f16", 1, kAny, kAny, {2, 4, 2, 4, 1}},
    {"sm_90", kNorm, "bf16", 1, kAny, kAny, {2, 2, 2, 4, 1}},
    {"sm_90", kNorm, "q8_0", 1, 2048, 1024, {2, 2, 4, 4, 1}},
    {"sm_90", kNorm, "q8_0", 1, 16384, 1024, {2, 1, 1, 4, 1}},
    {"sm_90", kNorm, "q8_0", 1, kAny, kAny, {2, 1, 1, 4, 1}},
    {"sm_90", kNorm, "q4_0", 1, 2048, 1024, {2, 1, 2, 4, 1}},
    {"sm_90", kNorm, "q4_0", 1, kAny, 1024, {2, 1, 1, 4, 1}},
    {"sm_90", kNorm, "q4_0", 1, 8192, 4096, {4, 1, 1, 2, 1}},
    {"sm_90", kNorm, "q4_0", 1, kAny, kAny, {8, 0, 1, 4, 1}},
    {"sm_90", kNorm, "q4_k", 1, kAny, kAny, {4, 1, 1, 2, 1}},
    {"sm_90", kNorm, "packed", 1, kAny, kAny, {2, 1, 1, 4, 1}},
    {"sm_90", kAttention, "", 1, 64, kAny, {256, 8, 32, 512, 256, 16}}, // decision 072
    {"sm_90", kAttention, "", 1, 128, kAny, {128, 4, 32, 512, 256, 16}},
    {"sm_90", kAttention, "", 1, 256, kAny, {256, 8, 8, 512, 256, 16}}, // matrices of so many columns leave registers
    {"sm_90", kAttention, "", 1, kAny, kAny, {128, 4, 32, 512, 256, 16}},

    // More rows: linear_rows, linear_matrix and linear_tiles up to so many of x, then torch's product;
    // backward; and of an expert.
    // Apple: a tile of 32 rows costs what some 24 rows cost that share readings of eight, or fewer of those that aren't
    // unpacked; from 128 rows on, unpacking W for torch's product costs less than half of that. Not measured by us.
    // M5: by tensor operations up to where unpacking 64 rows' tiles again costs what unpacking W for torch does; of dense
    // weights in the place of tiles (decision 054). Not measured by us.
    {"apple10", kRoutes, "packed", 1, kAny, kAny, {32, 0, 128, 16, 128, 512}},
    {"apple10", kRoutes, "", 1, kAny, kAny, {16, 0, 128, 16, 128, 128}},
    {"apple", kRoutes, "packed", 1, kAny, kAny, {32, 0, 128, 16, 128}},
    {"apple", kRoutes, "", 1, kAny, kAny, {16, 0, 128, 16, 128}},
    // NVIDIA: decisions 008, 035 and 052; matrix units that multiply 16x8x16 came after sm_75.
    {"sm_90", kRoutes, "q4_0", 1, kAny, kAny, {16, 128, 0, 16, 256}}, // experts by matrices: decision 059
    {"sm_90", kRoutes, "q8_0", 1, kAny, kAny, {16, 128, 0, 16, 256}},
    {"sm_90", kRoutes, "q4_k", 1, kAny, kAny, {16, 128, 0, 16, 256}},
    {"sm_90", kRoutes, "mxfp4", 1, kAny, kAny, {16, 64, 0, 16, 256}},
    {"sm_7", kRoutes, "packed", 1, kAny, kAny, {16, 0, 0, 16, 64}},
    {"sm_", kRoutes, "packed", 1, kAny, kAny, {16, 64, 0, 16, 64}},

    // Few rows by matrices, whatever their number (decisions 049, 057): those shapes of Llama-3-8B, and of Qwen3.5-4B, on
    // an H100 where a layer of one row takes no longer so. Behind a norm all of x is in threadgroup memory, which has no
    // room for more inputs.
    {"sm_90", kMatrices, "", 1, 65536, 2048, {0, 2, 1, 1, 1}},
    {"sm_90", kMatrices, "q8_0", 1, kAny, 1536, {0, 2, 1, 1, 1}},
    {"sm_90", kMatrices, "q4_0", 1, kAny, 2048, {32, 2, 2, 4, 264}}, // output layers (decision 061)
    {"sm_90", kMatrices, "q8_0", 1, kAny, 2048, {16, 3, 2, 4, 528}},
    {"sm_90", kMatrices, "q4_k", 1, kAny, 2048, {32, 2, 1, 4, 264}},
    {"sm_90", kMatrices, "q4_0", 1, 1024, kAny, {0, 2, 1, 1, 1}},
    {"sm_90", kMatrices, "q4_0", 1, 2048, kAny, {16, 3, 8, 8, 65535}},
    {"sm_90", kMatrices, "", 1, 2048, kAny, {0, 2, 1, 1, 1}},
    {"sm_90-h200", kMatrices, "q4_0", 1, 4096, 4096, {16, 2, 4, 8, 264}}, // decision 068, and all others of an H200
    {"sm_90-h200", kMatrices, "q4_0", 1, 4096, kAny, {32, 2, 8, 8, 132}},
    {"sm_90", kMatrices, "q4_0", 1, 4096, 4096, {16, 3, 4, 4, 264}},
    {"sm_90", kMatrices, "q4_0", 1, 4096, kAny, {16, 3, 8, 8, 65535}},
    {"sm_90-h200", kMatrices, "q4_0", 1, kAny, 3072, {32, 2, 2, 4, 264}},
    {"sm_90", kMatrices, "q4_0", 1, kAny, 12288, {32, 2, 4, 4, 264}},
    {"sm_90", kMatrices, "q4_0", 1, 8192, kAny, {16, 2, 4, 4, 65535}}, // decision 063
    {"sm_90", kMatrices, "q4_0", 1, kAny, kAny, {32, 2, 4, 4, 264}},
    {"sm_90-h200", kMatrices, "q8_0", 1, 4096, 12288, {0, 2, 1, 1, 1}},
    {"sm_90-h200", kMatrices, "q8_0", 1, 4096, kAny, {32, 2, 8, 8, 132}},
    {"sm_90-h200", kMatrices, "q4_k", 1, 4096, 12288, {0, 2, 1, 1, 1}},
    {"sm_90-h200", kMatrices, "q4_k", 1, 4096, kAny, {32, 2, 8, 8, 132}},
    {"sm_90", kMatrices, "", 1, 16384, kAny, {0, 2, 1, 1, 1}},
    {"sm_90-h200", kMatrices, "q8_0", 1, kAny, kAny, {32, 2, 2, 4, 264}},
    {"sm_90-h200", kMatrices, "q4_k", 1, kAny, 3072, {32, 2, 2, 4, 264}},
    {"sm_90", kMatrices, "q8_0", 1, kAny, kAny, {16, 3, 4, 4, 65535}},
    {"sm_90", kMatrices, "q4_k", 1, kAny, kAny, {32, 2, 4, 4, 264}},
    {"sm_90", kNormMatrices, "", 1, kAny, 2048, {0, 2, 1, 1, 1}},
    {"sm_90", kNormMatrices, "", 1, 4096, kAny, {0, 2, 1, 1, 1}},
    {"sm_90", kNormMatrices, "", 1, 8192, 4096, {0, 2, 1, 1, 1}},
    {"sm_90", kNormMatrices, "q8_0", 1, 8192, kAny, {0, 2, 1, 1, 1}},
    {"sm_90", kNormMatrices, "q4_k", 1, 8192, kAny, {0, 2, 1, 1, 1}},
    {"sm_90", kNormMatrices, "q8_0", 1, kAny, 3072, {0, 2, 1, 1, 1}},
    {"sm_90", kNormMatrices, "q4_k", 1, kAny, 3072, {0, 2, 1, 1, 1}},
    {"sm_90", kNormMatrices, "q4_0", 1, 16384, 3072, {16, 2, 5, 15, 132}}, // decision 063, and the next two
    {"sm_90-h200", kNormMatrices, "q4_0", 1, kAny, 3072, {16, 2, 5, 15, 132}},
    {"sm_90", kNormMatrices, "q4_0", 1, kAny, 3072, {16, 2, 3, 15, 132}},
    {"sm_90-h200", kNormMatrices, "q4_0", 1, kAny, 6144, {16, 2, 8, 16, 132}},
    {"sm_90", kNormMatrices, "q4_0", 1, kAny, 6144, {16, 2, 4, 8, 264}},
    {"sm_90", kNormMatrices, "q4_0", 1, 8192, kAny, {0, 2, 1, 1, 1}},
    {"sm_90", kNormMatrices, "q4_0", 1, kAny, 8192, {16, 2, 8, 16, 132}},
    {"sm_90", kNormMatrices, "q8_0", 1, kAny, 8192, {16, 2, 4, 8, 132}},
    {"sm_90", kNormMatrices, "q4_k", 1, kAny, 8192, {16, 2, 4, 8, 132}},
    {"", kMatrices, "", 1, kAny, kAny, {0, 2, 1, 1, 1}},
    {"", kNormMatrices, "", 1, kAny, kAny, {0, 2, 1, 1, 1}},

    // More rows of formats with fragments, by eights (decision 052): measured at shapes of Llama-3-8B on an H100.
    {"sm_90", kMatrix, "", 8, 1024, kAny, {16, 2, 4, 8, 4}},
    {"sm_90", kMatrix, "", 8, 4096, kAny, {16, 3, 2, 8, 4}},
    {"sm_90", kMatrix, "", 8, 8192, kAny, {32, 2, 2, 8, 4}},
    {"sm_90", kMatrix, "", 8, kAny, kAny, {32, 2, 1, 4, 4}},
    {"sm_90", kMatrix, "", 1, 1024, kAny, {16, 2, 8, 8, 2}},
    {"sm_90", kMatrix, "", 1, 4096, kAny, {16, 2, 4, 8, 4}},
    {"sm_90", kMatrix, "", 1, 8192, kAny, {16, 3, 2, 8, 4}},
    {"sm_90", kMatrix, "", 1, 16384, kAny, {32, 2, 2, 8, 4}},
    {"sm_90", kMatrix, "", 1, kAny, kAny, {32, 2, 1, 4, 4}},
    {"", kMatrix, "", 1, kAny, kAny, {0, 2, 1, 1, 1}},
    // Experts of prompts (decision 059): shapes of gpt-oss-20b, Qwen3.5-35B-A3B, Qwen3-30B-A3B and Gemma 4 26B-A4B.
    {"sm_90", kMoeMatrix, "mxfp4", 1, kAny, kAny, {16, 2, 1, 4, 4}},
    {"sm_90", kMoeMatrix, "q4_k", 1, kAny, kAny, {32, 2, 1, 4, 2}},
    {"sm_90", kMoeMatrix, "", 1, kAny, kAny, {16, 2, 1, 4, 2}},
    {"", kMoeMatrix, "", 1, kAny, kAny, {0, 2, 1, 1, 1}},

    // Any other GPU.
    {"", kLinear, "packed", 1, kAny, kAny, {2, 1, 1, 4, 1}},
    {"", kLinear, "", 1, 2048, kAny, {2, 2, 4, 8, 1}},
    {"", kLinear, "", 4, kAny, kAny, {4, 1, 1, 4, 1}},
    {"", kLinear, "", 1, kAny, kAny, {2, 2, 2, 4, 1}},
    {"", kAttention, "", 1, kAny, kAny, {256, 4, 8, 1024, 64, 16}},
    {"", kRoutes, "packed", 1, kAny, kAny, {16, 0, 0, 16, 64}},
    {"", kRoutes, "", 1, kAny, kAny, {8, 0, 0, 16, 64}},
};
// clang-format on

} // namespace

c10::ArrayRef<Line> built_in() { return kLines; }

} // namespace foundry::tuning
