#include "core/tuning_table.h"

namespace foundry::tuning {
namespace {

constexpr int64_t kAny = INT64_MAX;
constexpr Op kLinear = Op::linear, kAttention = Op::attention;

// clang-format off
constexpr Line kLines[] = {
    // The host executor: few, long-lived simdgroups, no split, whose barrier would switch fibers, chains that
    // the compiler makes vectors of.
    {"host", kLinear, "", 1, kAny, kAny, {4, 1, 1, 2, 4}},
    {"host", kAttention, "", 1, kAny, kAny, {256, 4, 1}},

    // Apple GPUs, from published designs; nothing here has been measured by us.
    // llama.cpp, Q8_0: two rows a team, four simdgroups share K. Q4_0: four rows, two simdgroups, no split.
    {"apple", kLinear, "q8_0", 8, kAny, kAny, {4, 1, 4, 4, 1}},
    {"apple", kLinear, "q8_0", 1, kAny, kAny, {2, 1, 4, 4, 1}},
    {"apple", kLinear, "q4_0", 1, kAny, kAny, {4, 1, 1, 2, 1}},
    // MLX, dense: four rows; K is split over eight simdgroups where it is 16 times N, else eight simdgroups from N = 4096
    // and four below. llama.cpp, dense, for few outputs: two rows, four simdgroups share K.
    {"apple", kLinear, "", 1, 1024, kAny, {2, 1, 4, 4, 1}},
    {"apple", kLinear, "", 1, 2048, kAny, {4, 1, 1, 4, 1}},
    {"apple", kLinear, "", 1, kAny, kAny, {4, 1, 1, 8, 1}},
    // MLX and torch split long caches over 32 or 64 threadgroups on base and Pro chips: 256 keys each for 8 K and more.
    {"apple", kAttention, "", 1, kAny, kAny, {256, 4, 8}},

    // Any other GPU.
    {"", kLinear, "", 1, 2048, kAny, {2, 2, 4, 8, 1}},
    {"", kLinear, "", 4, kAny, kAny, {4, 1, 1, 4, 1}},
    {"", kLinear, "", 1, kAny, kAny, {2, 2, 2, 4, 1}},
    {"", kAttention, "", 1, kAny, kAny, {256, 4, 8}},
};
// clang-format on

} // namespace

c10::ArrayRef<Line> built_in() { return kLines; }

} // namespace foundry::tuning
