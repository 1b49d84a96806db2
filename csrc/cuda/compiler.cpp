#include "cuda/compiler.h"

#include <dlfcn.h>
#include <filesystem>
#include <mutex>
#include <nvrtc.h>
#include <tuple>

#include <c10/util/Exception.h>

#include "core/compiling.h"

namespace foundry::cuda {
namespace {

namespace fs = std::filesystem;

// The functions of libnvrtc, which is loaded when the first kernel is compiled.
struct Nvrtc {
  decltype(&nvrtcVersion) version;
  decltype(&nvrtcCreateProgram) create;
  decltype(&nvrtcDestroyProgram) destroy;
  decltype(&nvrtcCompileProgram) compile;
  decltype(&nvrtcGetProgramLogSize) log_size;
  decltype(&nvrtcGetProgramLog) log;
  decltype(&nvrtcGetCUBINSize) cubin_size;
  decltype(&nvrtcGetCUBIN) cubin;
  decltype(&nvrtcGetPTXSize) ptx_size;
  decltype(&nvrtcGetPTX) ptx;
  decltype(&nvrtcGetErrorString) error_string;
  std::string identity;
};

void* open_nvrtc(const std::vector<std::string>& candidates) {
  std::string failures;
  for (const std::string& path : candidates) {
    // Its builtins lie beside it, where it does not look by itself.
    std::error_code ignored;
    if (const fs::path folder = fs::path(path).parent_path(); !folder.empty())
      for (const auto& file : fs::directory_iterator(folder, ignored))
        if (file.path().filename().string().rfind("libnvrtc-builtins.so", 0) == 0)
          dlopen(file.path().c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return library;
    failures += std::string("\n  ") + dlerror();
  }
  TORCH_CHECK(false, "torch_foundry: NVRTC is needed to compile kernels for CUDA and was not found:", failures);
}

const Nvrtc& nvrtc(const std::vector<std::string>& candidates) {
  static std::mutex mutex;
  static Nvrtc* loaded = nullptr;
  std::lock_guard<std::mutex> lock(mutex);
  if (loaded) return *loaded;
  void* library = open_nvrtc(candidates);
  auto table = std::make_unique<Nvrtc>();
  const auto find = [library](auto& slot, const char* name) {
    slot = reinterpret_cast<std::remove_reference_t<decltype(slot)>>(dlsym(library, name));
    TORCH_CHECK(slot, "torch_foundry: libnvrtc has no ", name);
  };
  find(table->version, "nvrtcVersion");
  find(table->create, "nvrtcCreateProgram");
  find(table->destroy, "nvrtcDestroyProgram");
  find(table->compile, "nvrtcCompileProgram");
  find(table->log_size, "nvrtcGetProgramLogSize");
  find(table->log, "nvrtcGetProgramLog");
  find(table->cubin_size, "nvrtcGetCUBINSize");
  find(table->cubin, "nvrtcGetCUBIN");
  find(table->ptx_size, "nvrtcGetPTXSize");
  find(table->ptx, "nvrtcGetPTX");
  find(table->error_string, "nvrtcGetErrorString");
  int major = 0, minor = 0;
  table->version(&major, &minor);
  table->identity = "nvrtc " + std::to_string(major) + "." + std::to_string(minor);
  loaded = table.release();
  return *loaded;
}

// Text or bytes of the compiler, by its two functions.
template <class Size, class Get> std::string fetch(nvrtcProgram program, Size size, Get get) {
  size_t n = 0;
  if (size(program, &n) != NVRTC_SUCCESS || n == 0) return {};
  std::string text(n, '\0');
  get(program, text.data());
  return text;
}

// The host's arithmetic is not contracted, so this is not either: results don't depend on the template instance. With a
// number of registers to keep to, the compiler leaves loads that stand together together; without, it moves each to its
// first use, and a thread waits for one at a time. `registers`: of which twelve or sixteen warps have as many.
std::vector<std::string> options(const Toolchain& toolchain, const std::string& arch, int registers) {
  std::vector<std::string> all{"-arch=" + arch,
                               "-std=c++17",
                               "-default-device",
                               "-device-int128",
                               "-fmad=false",
                               "-lineinfo",
                               "-w",
                               "--maxrregcount=" + std::to_string(registers)};
  for (const char* directory : {"/prelude", "/cuda/prelude", "/cuda/prelude/std"})
    all.push_back("-I" + toolchain.root + directory);
  if (toolchain.checked) all.push_back("-DMSL_CHECKED");
  return all;
}

struct Compiled {
  std::string cubin, ptx;
};

Compiled compile(const Nvrtc& api, const std::string& label, const std::string& text,
                 const std::vector<std::string>& flags) {
  nvrtcProgram program = nullptr;
  const nvrtcResult made = api.create(&program, text.c_str(), "torch_foundry.cu", 0, nullptr, nullptr);
  TORCH_CHECK(made == NVRTC_SUCCESS, "torch_foundry: ", label, ": NVRTC: ", api.error_string(made));
  std::vector<const char*> argv;
  for (const std::string& flag : flags) argv.push_back(flag.c_str());
  const nvrtcResult result = api.compile(program, static_cast<int>(argv.size()), argv.data());
  const std::string log = fetch(program, api.log_size, api.log);
  Compiled compiled;
  if (result == NVRTC_SUCCESS)
    compiled = {fetch(program, api.cubin_size, api.cubin), fetch(program, api.ptx_size, api.ptx)};
  api.destroy(&program);
  TORCH_CHECK(result == NVRTC_SUCCESS, "torch_foundry: ", label, " does not compile for CUDA (",
              api.error_string(result), "):", first_errors(log));
  return compiled;
}

} // namespace

bool Variant::operator<(const Variant& other) const {
  return std::tie(references_in_memory, inline_bytes, max_threads) <
         std::tie(other.references_in_memory, other.inline_bytes, other.max_threads);
}

std::string module_text(const Source& source, const Kernel& kernel, const Variant& variant) {
  std::string text;
  for (const Constant& c : kernel.constants)
    text += "#define MSL_FC_" + std::to_string(c.index) + " (" + c.value + ")\n";
  if (variant.references_in_memory)
    text += "#define MSL_REFERENCES_IN_MEMORY " + std::to_string(variant.references_in_memory) + "u\n";
  if (!variant.inline_bytes.empty()) {
    text += "#define MSL_INLINE_POINTERS ";
    for (const auto& [index, size] : variant.inline_bytes)
      text += "{" + std::to_string(index) + ", " + std::to_string(size) + "}, ";
    text += "\n";
  }
  if (variant.max_threads)
    text += "#define MSL_ENTRY_BOUNDS __launch_bounds__(" + std::to_string(variant.max_threads) + ")\n";
  const std::string signature = kernel.signature.empty() ? kernel.function + "_msl_args" : kernel.signature;
  return text + "#include \"metal_prelude.h\"\nMSL_SHADER_SCOPE_BEGIN\n" + source.translated + "\nMSL_KERNEL(\"" +
         kernel.entry() + "\", " + signature + ", " + kernel.entry() + ")\nMSL_SHADER_SCOPE_END\n";
}

std::string compile_cubin(const Toolchain& toolchain, const std::string& label, const std::string& text,
                          const std::string& arch) {
  const Nvrtc& api = nvrtc(toolchain.nvrtc);
  // What goes from memory into wide products has few instructions: more in flight matters more than more threads.
  const bool wide = text.find("multiply_accumulate_2x2") != std::string::npos;
  const std::vector<std::string> flags = options(toolchain, arch, wide ? 168 : 128);
  std::string key = api.identity + '\n' + toolchain.prelude_hash;
  for (const std::string& flag : flags)
    if (flag.rfind("-I", 0) != 0) key += '\n' + flag; // paths say nothing, the hash has what lies there
  const std::string name = content_hash(key + '\n' + text) + ".cubin";
  if (auto found = find_entry(toolchain.cache, name)) return std::move(found->content);

  const CompileNotice notice;
  Compiled compiled;
  // Kernels that multiply matrices want their lanes in the tensor core's order, the others in the shader's. Which they
  // are is seen in what the compiler has kept.
  bool permuted = text.find("simdgroup_matrix") != std::string::npos;
  if (permuted) {
    std::vector<std::string> with = flags;
    with.emplace_back("-DMSL_PERMUTED");
    compiled = compile(api, label, text, with);
    permuted = compiled.ptx.find("msl_matrix_product") != std::string::npos;
  }
  if (!permuted) compiled = compile(api, label, text, flags);
  try {
    NewEntry entry(toolchain.cache, name);
    NewEntry::write(entry.part(), compiled.cubin);
    entry.keep();
  } catch (const c10::Error& error) { // the kernel is there, whether or not it can be kept
    TORCH_WARN(error.what_without_backtrace());
  }
  return compiled.cubin;
}

} // namespace foundry::cuda
