// Switching between fibers (stackful coroutines): the part that is inlined into kernels.
//
// x86-64 and aarch64 switch with a few instructions and no call: lanes that run in step resume at the same address, so
// the branch predictor follows them. Everything the compiler keeps in registers is declared clobbered; it saves what is
// live, which is little. -DMSL_FIBER_UCONTEXT, or any other processor, uses ucontext: slow, portable.
#pragma once
#include <stddef.h>
#include <stdint.h>

#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(MSL_FIBER_UCONTEXT)
#define MSL_FIBER_UCONTEXT 1
#endif

#define MSL_INLINE inline __attribute__((always_inline))

namespace msl_ {

#if defined(MSL_FIBER_UCONTEXT)
struct Context {
  void* machine; // the ucontext_t, owned by fiber.cpp
  bool fresh;    // not started, or finished and rewound
};
#else
struct Context {
  void* stack_pointer;
  void* resume; // code address
  void* frame_pointer;
  void* base_pointer; // x86-64: rbx, which clang may reserve for realigned frames
};
#endif

} // namespace msl_

extern "C" {
// First code of every fiber; runs the kernel for msl_::current(). Never returns.
__attribute__((visibility("default"), noreturn)) void msl_rt_fiber_entry(void);
#if defined(MSL_FIBER_UCONTEXT)
__attribute__((visibility("default"))) void msl_rt_switch_context(msl_::Context* from, msl_::Context* to);
#endif
}

namespace msl_ {

#if defined(MSL_FIBER_UCONTEXT)
MSL_INLINE bool is_fresh(const Context& context) { return context.fresh; }
MSL_INLINE void switch_context(Context* from, Context* to) { msl_rt_switch_context(from, to); }
#else
MSL_INLINE bool is_fresh(const Context& context) { return context.resume == (void*)&msl_rt_fiber_entry; }

#if defined(__x86_64__)
#if defined(__AVX512F__)
#define MSL_AVX512_CLOBBERS                                                                                            \
  , "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27",        \
      "xmm28", "xmm29", "xmm30", "xmm31", "k1", "k2", "k3", "k4", "k5", "k6", "k7"
#else
#define MSL_AVX512_CLOBBERS
#endif
// Nothing is pushed: the code that this is inlined into may keep data in the red zone.
MSL_INLINE void switch_context(Context* from, const Context* to) {
  asm volatile("leaq 1f(%%rip), %%rax\n\t"
               "movq %%rsp, 0(%%rdi)\n\t"
               "movq %%rax, 8(%%rdi)\n\t"
               "movq %%rbp, 16(%%rdi)\n\t"
               "movq %%rbx, 24(%%rdi)\n\t"
               "movq 0(%%rsi), %%rsp\n\t"
               "movq 16(%%rsi), %%rbp\n\t"
               "movq 24(%%rsi), %%rbx\n\t"
               "jmpq *8(%%rsi)\n"
               "1:"
               : "+D"(from), "+S"(to)
               :
               : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "memory", "cc", "xmm0",
                 "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12",
                 "xmm13", "xmm14", "xmm15" MSL_AVX512_CLOBBERS);
}
#undef MSL_AVX512_CLOBBERS
#elif defined(__aarch64__)
#if defined(__APPLE__)
#define MSL_X18_CLOBBER // the system's own register
#else
#define MSL_X18_CLOBBER "x18",
#endif
MSL_INLINE void switch_context(Context* from, const Context* to) {
  register Context* x0 asm("x0") = from;
  register const Context* x1 asm("x1") = to;
  asm volatile("adr x9, 1f\n\t"
               "mov x10, sp\n\t"
               "stp x10, x9, [x0]\n\t"
               "str x29, [x0, #16]\n\t"
               "str x19, [x0, #24]\n\t" // a base pointer for clang, as rbx on x86-64
               "ldp x10, x9, [x1]\n\t"
               "ldr x29, [x1, #16]\n\t"
               "ldr x19, [x1, #24]\n\t"
               "mov sp, x10\n\t"
               "br x9\n"
               "1:\n\t"
               "hint #36" // bti j: a legal target of br where branch targets are checked
               : "+r"(x0), "+r"(x1)
               :
               : "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17",
                 MSL_X18_CLOBBER "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x30", "memory", "cc",
                 "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", "v13", "v14", "v15",
                 "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29",
                 "v30", "v31");
}
#undef MSL_X18_CLOBBER
#endif
#endif

} // namespace msl_
