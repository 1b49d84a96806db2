// The rules of Metal and of torch's MPS stream. A broken one has a name, stops the call with an exception, and is kept:
// code that swallows the exception doesn't get away with it (`torch.ops.mock_metal.violations()`).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <c10/util/StringUtil.h>

namespace mock {

// Keeps the violation and throws `MockMetal: RULE: what`.
[[noreturn]] void fail(const char* rule, const std::string& what);

// Keeps a violation where nothing may be thrown (release, destructors). The next synchronisation throws it.
void note(const char* rule, const std::string& what);

// Throws what was noted since the last call.
void throw_noted();

// A line of the record of what was asked of the GPU: "dispatch rms_norm<half>", "commit", "icb x12".
void trace(const std::string& event);

// What a test may set; see control.cpp for the names.
struct Settings {
  std::atomic<int64_t> max_threads{1024};            // of a threadgroup, for every pipeline
  std::atomic<int64_t> free_threads{384};            // for one that declares no number: the worst of an M1
  std::atomic<int64_t> memory{int64_t{8} << 30};     // bytes that tensors may take
  std::atomic<int64_t> max_buffer{int64_t{4} << 30}; // bytes of one buffer
  std::atomic<int64_t> family{1009};                 // the highest GPU family: 1007 M1, 1008 M2, 1009 M3 and M4
  std::atomic<int64_t> icb{1};                       // 0: the driver refuses indirect command buffers
  std::atomic<int64_t> paravirtual{0};               // 1: the GPU is a virtual machine's
  std::atomic<int64_t> capturing{0};                 // 1: torch captures the stream, see capture.mm
  std::atomic<int64_t> archives{1};                  // 0: the system can't make binary archives
  std::atomic<int64_t> fail_command_buffer{0};       // the n-th next command buffer fails on the GPU
  std::atomic<int64_t> private_memory{0};            // 1: tensors lie where the CPU can't reach (torch 2.11)
  std::atomic<int64_t> recycle{0};                   // 1: memory of freed tensors is given to new ones, as torch does
  std::atomic<int64_t> thread_streams{0};            // 1: each thread has a stream of its own, as from torch 2.14 on
  std::atomic<int64_t> plain_pointers{0};            // 1: a storage's data is no buffer, as in a torch to come
  std::atomic<int64_t> io{1};                        // 0: the system can't make queues that read files
  std::atomic<int64_t> whole{0};                     // 1: texts of several shaders are compiled as they are
  std::atomic<int64_t> run{1};                       // 0: kernels are neither compiled to the end nor run
};
Settings& settings();

// Objects of the mock that are alive, by class; a class counts from its first object on.
void count_object(const char* kind, int change);

} // namespace mock

#define MOCK_RULE(rule, condition, ...)                                                                                \
  do {                                                                                                                 \
    if (!(condition)) ::mock::fail(rule, ::c10::str(__VA_ARGS__));                                                     \
  } while (0)
