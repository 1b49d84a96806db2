// What the shared prelude asks of the platform that it is compiled for: here the host's C++ compiler and the fiber
// runtime.
#pragma once
#include "../runtime_state.h"

// Where a shader's text lies: on the host in the global namespace.
#define MSL_SHADER_SCOPE_BEGIN
#define MSL_SHADER_SCOPE_END

// C++ has _Float16 on x86-64 from GCC 12 and clang 15, on aarch64 from GCC 13 and in clang. From GCC 13 on it rounds
// each result only where the processor has such arithmetic: elsewhere it computes in float.
#if defined(__clang__)
#define MSL_NATIVE_HALF (__clang_major__ >= 15 || defined(__aarch64__))
#elif defined(__x86_64__) && !defined(__AVX512FP16__)
#define MSL_NATIVE_HALF (__GNUC__ == 12)
#else
#define MSL_NATIVE_HALF (__GNUC__ >= 13 || (__GNUC__ == 12 && defined(__x86_64__)))
#endif

#if defined(MSL_CHECKED)
namespace msl_ {
MSL_INLINE void report_zero_divisor(int line, const char* file) {
  msl_rt_report(static_cast<uint32_t>(line), file, "integer division by zero");
}
} // namespace msl_
#endif
