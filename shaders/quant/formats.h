// The registry: every weight format that kernels, the host table, Python and the tests know. One line each.
#pragma once
#include "dense.h"
#include "q8_0.h"
#include "q4_0.h"
