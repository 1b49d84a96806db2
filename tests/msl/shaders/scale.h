// Included by breadth.metal: arguments that the host would share, and a helper.
#pragma once
#ifdef __METAL_VERSION__
#include <metal_stdlib>
#endif

enum BufferIndex { BufferIndexInput = 0, BufferIndexOutput = 2, BufferIndexArgs };
#define FC_SCALE 10

struct ScaleArgs {
  int n;
  float factor;
};
