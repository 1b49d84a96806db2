// Function constants of what handles heads of new tokens: kernels that may be parts of one library.
#pragma once
#include "attention/rope_kv.h"

namespace foundry {

constant bool has_rope [[function_constant(FC_ROPE_ROTATE)]];
constant bool has_head_norm [[function_constant(FC_ROPE_NORM)]];
constant bool has_late_norm [[function_constant(FC_ROPE_NORM_LATE)]];
constant bool has_norm_v [[function_constant(FC_ROPE_NORM_V)]];
constant bool has_row_norm [[function_constant(FC_ROPE_NORM_ROWS)]];

} // namespace foundry
