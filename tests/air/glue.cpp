// What AIR's kernels call: the host executor's own fibers and, where a result is not fixed by the language, its prelude.
// The names of air.* functions become functions of this file (intrinsics.py writes them behind this text).
#include "metal_prelude.h"
#include "tensors.h"

namespace {

using Entry = void (*)(void* const* buffers, const uint32_t* ids);
using Poison = void (*)();
Entry entry;
Poison poison;
char first_of_group;
// For buffers that a function constant switches off: AIR says of them, as of others, that they can be read, and so a
// compiler may read them before it is known whether they are needed.
alignas(64) char unbound[4096];

// Positions as intrinsics.py's IDS has them.
void fill(uint32_t* ids, const msl_::Group& group, const msl_::Thread& thread) {
  for (int i = 0; i < 3; i++) {
    ids[i] = group.position[i] * group.nominal_size[i] + thread.position[i];
    ids[3 + i] = group.position[i];
    ids[6 + i] = thread.position[i];
    ids[9 + i] = group.size[i];
    ids[12 + i] = group.groups[i];
    ids[15 + i] = group.grid[i];
    ids[18 + i] = group.nominal_size[i];
  }
  ids[21] = thread.lane;
  ids[22] = thread.index / MSL_LANES;
  ids[23] = thread.index;
  ids[24] = MSL_LANES;
  ids[25] = (group.nthreads + MSL_LANES - 1) / MSL_LANES;
  ids[26] = thread.index / 4;
  ids[27] = thread.index % 4;
}

// One thread, and on its stack those after it: as the thunk of a translated kernel. A module's threadgroup variables
// are its globals, one set for all threadgroups: a process runs one kernel with one OS thread.
void thunk(const msl_::Group* group, msl_::Thread* thread) {
  do {
    auto* mine = const_cast<msl_::Group*>(group);
    if (group->nlocals == 0) { // the first thread of this threadgroup
      msl_rt_threadgroup_local(mine, reinterpret_cast<unsigned char*>(&first_of_group), 1);
      poison();
    }
    uint32_t ids[28];
    fill(ids, *group, *thread);
    void* bound[2 * MSL_MAX_BUFFERS];
    for (uint32_t i = 0; i < MSL_MAX_BUFFERS; i++) {
      bound[i] = i < group->nbuffers ? group->buffers[i] : nullptr;
      if (bound[i] == nullptr) bound[i] = unbound;
      bound[MSL_MAX_BUFFERS + i] = group->threadgroup_memory[i];
    }
    entry(bound, ids);
    thread = msl_::finish(thread);
  } while (thread != nullptr);
}

msl_kernel_entry kernel = {"air", &thunk, 0, nullptr, 0};

} // namespace

extern "C" {
#define AIR __attribute__((visibility("default"))) void
__attribute__((visibility("default"))) const msl_kernel_entry* air_kernel(const char* name, Entry run, Poison fill) {
  kernel.name = name, entry = run, poison = fill;
  __builtin_memset(unbound, 0xFF, sizeof unbound);
  return &kernel;
}
AIR air_wg_barrier(int flags, int site) {
  metal::threadgroup_barrier(static_cast<metal::mem_flags>(flags), site, "AIR, call");
}
AIR air_simdgroup_barrier(int flags, int site) {
  metal::simdgroup_barrier(static_cast<metal::mem_flags>(flags), site);
}
// What LLVM calls where the processor has no such conversion; bfloat and half travel as half.
__attribute__((visibility("default"))) _Float16 air_truncsfbf2(float x) {
  const bfloat b = static_cast<bfloat>(x);
  _Float16 bits;
  __builtin_memcpy(&bits, &b, sizeof bits);
  return bits;
}
__attribute__((visibility("default"))) _Float16 air_truncsfhf2(float x) { return static_cast<_Float16>(x); }
__attribute__((visibility("default"))) _Float16 air_truncdfhf2(double x) { return static_cast<_Float16>(x); }
__attribute__((visibility("default"))) float air_extendhfsf2(_Float16 x) { return x; }
__attribute__((visibility("default"))) _Float16 air_fmaf16(_Float16 a, _Float16 b, _Float16 c) {
  return static_cast<_Float16>(__builtin_fma(a, b, c));
}
}
