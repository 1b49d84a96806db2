// Metal Shading Language for the host's C++ compiler: included first by every translated kernel source.
//
// Translated text has gone through the preprocessor already, so macros of MSL are not defined here. No libc header is
// included: their functions would clash with MSL's of the same name.
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
#include "matrix.h"
#include "scalar.h"
#include "simd.h"
#include "simdgroup_matrix.h"
#include "traits.h"
#include "vector.h"
