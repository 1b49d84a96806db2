// The gated short convolution: y = C * conv(B * x), causal, of each channel alone. Its state is the last W products of
// B and x, rounded as stock code rounds them. A thread has a channel of some tokens of a sequence; nothing is shared.
#include "mixers/short_conv.h"

using namespace metal;
using namespace foundry;

constant bool has_bias [[function_constant(FC_SHORT_CONV_BIAS)]];

// foundry-lint: instance(short_conv<half, 3>)
// foundry-lint: instance(short_conv<float, 4>)
template <typename T, int W>
[[kernel]] void short_conv(
    device const T* bcx [[buffer(0)]],    // [tokens, 3 * channels]: B, C, x
    device const T* weight [[buffer(1)]], // [channels, W]
    device const T* bias [[buffer(2), function_constant(has_bias)]],
    device T* states [[buffer(3)]],        // [slots of all, channels, W]
    device const int* runs [[buffer(4)]],  // of each sequence: its first token, and how many there are
    device const int* table [[buffer(5)]], // of each sequence: the slot of state n is at n % slots
    device const int* count [[buffer(6)]], // of each sequence: the number of its state; 0: zeros, which nobody stores
    device T* y [[buffer(7)]],             // [tokens, channels]
    constant ShortConvArgs& args [[buffer(8)]],
    uint3 group [[threadgroup_position_in_grid]],
    uint3 groups [[threadgroups_per_grid]],
    uint tid [[thread_index_in_threadgroup]]) {
  const uint channel = group.x * short_conv_threads + tid, channels = args.channels;
  if (channel >= channels) return;
  const uint first = runs[group.y * args.runs_stride], tokens = runs[group.y * args.runs_stride + 1];
  const uint begin = count[group.y * args.count_stride];
  device const int* slots = table + group.y * args.table_stride;
  device const T* before = states + (ulong(begin == 0 ? 0 : slots[begin % args.slots]) * channels + channel) * W;
  device const T* own = bcx + first * args.stride + channel;

  for (uint from = group.z * short_conv_tokens; from < tokens; from += groups.z * short_conv_tokens) {
    T last[W];
    for (int w = 1; w < W; ++w) {
      const int at = int(from) - W + w;
      device const T* row = own + uint(at < 0 ? 0 : at) * args.stride;
      last[w] = at >= 0 ? T(float(row[0]) * float(row[2 * channels])) : begin != 0 ? T(before[W + at]) : T(0.0f);
    }
    for (uint t = from; t < min(from + short_conv_tokens, tokens); ++t) {
      device const T* row = own + t * args.stride;
      for (int w = 1; w < W; ++w)
        last[w - 1] = last[w];
      last[W - 1] = T(float(row[0]) * float(row[2 * channels]));
      float sum = has_bias ? float(bias[channel]) : 0.0f;
      for (int w = 0; w < W; ++w)
        sum = fma(float(last[w]), float(weight[channel * W + w]), sum);
      y[(first + t) * channels + channel] = T(float(row[channels]) * sum);

      const bool each = tokens < args.slots; // whether each token leaves a state
      if (each || t + 1 == tokens) {
        const uint slot = slots[(begin + 1 + (each ? t : 0)) % args.slots];
        for (int w = 0; w < W; ++w)
          states[(ulong(slot) * channels + channel) * W + w] = last[w];
      }
    }
  }
}
