// Whether a device keeps halves that are subnormal, which Metal doesn't promise. Products with some packed weights
// take their codes for such where the tuning table says so, and the device does.
#pragma once

#include <c10/core/Device.h>

namespace foundry {

// Asked of the device when it is first needed, which waits for it, and again where shaders were replaced since; false
// too if that fails.
bool keeps_subnormals(c10::Device device);

} // namespace foundry
