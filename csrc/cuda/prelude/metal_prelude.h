// Metal Shading Language for NVRTC: included first by every translated kernel source.
#pragma once
#include "arguments.h"
#include "arithmetic.h"
#include "atomic.h"
#include "barrier.h"
#include "conditional.h"
#include "geometric.h"
#include "integer.h"
#include "internals.h"
#include "float_math.h"
#include "math_names.h"
#include "packed.h"
#include "matrix.h"
#include "scalar.h"
#include "simd.h"
#include "simdgroup_matrix.h"
#include "staging.h"
#include "traits.h"
#include "vector.h"
#include "wide_product.h"

// In a shader Metal's functions hide CUDA's; both see what the shader adds.
MSL_SHADER_SCOPE_BEGIN
using namespace metal;
MSL_MATH_NAMES
MSL_SHADER_SCOPE_END

namespace metal {
using namespace msl_shader;
}
