// Whether products of matrices by a device's tensor operations (linear_tensors.metal) are as good as sums in float32
// make them. Others saw whole logits drift with such operations, so a device is asked before they are used.
#pragma once

#include <c10/core/Device.h>

namespace foundry {

// The most that a device's error may be: 512 products one after another stay below it in float32, also if sums are cut
// off instead of rounded (2^-20.6); sums of 22 bits that are cut off (2^-18.3), of 17 that are rounded (2^-18.1), and
// any element that is wrong, do not.
constexpr float kMostTensorError = 0x1p-19f;

// The norm of the errors of products of known halves and bfloats, whole tiles and edges of tiles, over the norm of the
// products of their absolute values. Asked of the device when it is first needed, which waits for it, and again where
// shaders were replaced since. Infinite where something is wrong or does not compile; NaN where the device has no such
// operations.
float tensor_error(c10::Device device);

} // namespace foundry
