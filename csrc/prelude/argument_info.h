// What a compiled kernel says of its arguments, and the limits that Metal puts on a launch. C.
#pragma once
#include <stdint.h>

#define MSL_LANES 32                    // threads of a simdgroup
#define MSL_MAX_THREADS 1024            // threads in a threadgroup
#define MSL_MAX_WEIGHTS 3               // of a launch, that its executor may fetch ahead
#define MSL_MAX_THREADGROUP_BYTES 32768 // dynamic and static threadgroup memory together
#define MSL_MAX_BUFFERS 31              // buffer indices 0..30, also threadgroup memory indices

enum { MSL_ARG_BUFFER = 0, MSL_ARG_THREADGROUP = 1, MSL_ARG_BUILTIN = 2 };

typedef struct {
  uint8_t kind;         // MSL_ARG_*
  uint8_t by_reference; // `constant T&`: the buffer must hold at least one T
  uint8_t optional;     // may be left unbound (a function constant switches it off)
  uint8_t reserved;
  uint32_t index;     // of the buffer or of the threadgroup memory
  uint32_t size;      // bytes of the pointee
  uint32_t alignment; // of the pointee
} msl_arg_info;
