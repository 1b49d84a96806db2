#include "../msl_macros.h"
