// What torch's MPS profiler header uses of <os/log.h>.
#pragma once
#include <time.h>
typedef struct os_log_s* os_log_t;
