// What Metal would refuse, refused with a message; and the reports of checked builds.
#include "runtime_launch.h"
#include "runtime_state.h"

#include <cstdio>

namespace msl_ {

namespace {

std::string check_sizes(const msl_launch& launch) {
  const uint32_t* group = launch.group;
  const uint64_t nthreads = uint64_t(group[0]) * group[1] * group[2];
  if (nthreads == 0) return format("threadgroup of %u x %u x %u threads is empty", group[0], group[1], group[2]);
  if (nthreads > MSL_MAX_THREADS)
    return format("threadgroup of %u x %u x %u = %llu threads, Metal allows %d", group[0], group[1], group[2],
                  static_cast<unsigned long long>(nthreads), MSL_MAX_THREADS);
  for (int axis = 0; axis < 3; axis++)
    if (!launch.grid_is_threads && uint64_t(launch.grid[axis]) * group[axis] > UINT32_MAX)
      return format("grid of %u threadgroups of %u threads in dimension %d: positions do not fit 32 bits",
                    launch.grid[axis], group[axis], axis);
  return {};
}

std::string check_threadgroup_memory(const msl_launch& launch) {
  if (launch.nthreadgroup > MSL_MAX_BUFFERS)
    return format("threadgroup memory index %u, Metal allows 0..%d", launch.nthreadgroup - 1, MSL_MAX_BUFFERS - 1);
  uint64_t total = 0;
  for (uint32_t i = 0; i < launch.nthreadgroup; i++) {
    if (launch.threadgroup_bytes[i] % 16 != 0)
      return format("threadgroup memory %u has %u bytes: not a multiple of 16", i, launch.threadgroup_bytes[i]);
    total += launch.threadgroup_bytes[i];
  }
  if (total > MSL_MAX_THREADGROUP_BYTES)
    return format("%llu bytes of threadgroup memory, Metal allows %d", static_cast<unsigned long long>(total),
                  MSL_MAX_THREADGROUP_BYTES);
  return {};
}

std::string check_buffer(const msl_launch& launch, const msl_arg_info& arg) {
  if (arg.index >= MSL_MAX_BUFFERS)
    return format("buffer index %u, Metal allows 0..%d", arg.index, MSL_MAX_BUFFERS - 1);
  void* address = arg.index < launch.nbuffers ? launch.buffers[arg.index] : nullptr;
  const bool needed = !arg.optional && (launch.kernel->used >> arg.index & 1) != 0;
  if (address == nullptr) return needed ? format("buffer %u is not bound", arg.index) : std::string();
  if (reinterpret_cast<uintptr_t>(address) % arg.alignment != 0)
    return format("buffer %u: address %p is not aligned to the %u bytes of its type", arg.index, address,
                  arg.alignment);
  if (arg.by_reference && launch.buffer_bytes != nullptr && launch.buffer_bytes[arg.index] < arg.size)
    return format("buffer %u has %llu bytes, its type needs %u", arg.index,
                  static_cast<unsigned long long>(launch.buffer_bytes[arg.index]), arg.size);
  return {};
}

std::string check_arguments(const msl_launch& launch) {
  if (launch.nbuffers > MSL_MAX_BUFFERS)
    return format("buffer index %u, Metal allows 0..%d", launch.nbuffers - 1, MSL_MAX_BUFFERS - 1);
  for (uint32_t i = 0; i < launch.kernel->nargs; i++) {
    const msl_arg_info& arg = launch.kernel->args[i];
    if (arg.kind == MSL_ARG_BUFFER) {
      const std::string error = check_buffer(launch, arg);
      if (!error.empty()) return error;
    }
    if (arg.kind == MSL_ARG_THREADGROUP && !arg.optional &&
        (arg.index >= launch.nthreadgroup || launch.threadgroup_bytes[arg.index] == 0))
      return format("threadgroup memory %u has no length", arg.index);
  }
  return {};
}

} // namespace

std::string check_launch(const msl_launch& launch) {
  for (const auto check : {check_sizes, check_threadgroup_memory, check_arguments}) {
    const std::string error = check(launch);
    if (!error.empty()) return format("kernel %s: %s", launch.kernel->name, error.c_str());
  }
  return {};
}

} // namespace msl_

// Checked builds compile kernels with -fsanitize=alignment,float-cast-overflow; these are the entry points that such
// code calls. They are ours rather than libubsan's, so that a fault fails the launch instead of printing somewhere.
namespace {

struct SourceLocation {
  const char* file;
  uint32_t line, column;
};

struct TypeMismatch {
  SourceLocation location;
  const void* type;
  unsigned char log_alignment, check_kind;
};

struct CastOverflow {
  SourceLocation location;
  const void *from, *to;
};

void report(const char* file, uint32_t line, const std::string& what) {
  const std::string message = msl_::format("%s:%u: %s", file, line, what.c_str());
  if (const msl_::Thread* thread = msl_::current(); thread != nullptr) {
    msl_::LaunchState* state = thread->simdgroup->group->launch;
    state->fail(msl_::format("kernel %s: %s", state->launch->kernel->name, message.c_str()));
  } else {
    std::fprintf(stderr, "torch_foundry: %s\n", message.c_str());
  }
}

void report_misaligned(const TypeMismatch* data, uintptr_t address) {
  report(data->location.file, data->location.line,
         msl_::format("misaligned access: address %p, the type needs %u bytes of alignment",
                      reinterpret_cast<void*>(address), 1u << data->log_alignment));
}

void report_overflow(const CastOverflow* data) {
  report(data->location.file, data->location.line,
         "implicit conversion of a number that does not fit the integer: Metal takes the nearest one, C++ any");
}

} // namespace

extern "C" {
MSL_EXPORT void msl_rt_report(uint32_t line, const char* file, const char* what) { report(file, line, what); }
MSL_EXPORT void __ubsan_handle_type_mismatch_v1(TypeMismatch* data, uintptr_t address) {
  report_misaligned(data, address);
}
MSL_EXPORT void __ubsan_handle_type_mismatch_v1_abort(TypeMismatch* data, uintptr_t address) {
  report_misaligned(data, address);
}
MSL_EXPORT void __ubsan_handle_float_cast_overflow(CastOverflow* data, uintptr_t) { report_overflow(data); }
MSL_EXPORT void __ubsan_handle_float_cast_overflow_abort(CastOverflow* data, uintptr_t) { report_overflow(data); }
}
