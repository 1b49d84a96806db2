#include "host/toolchain.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <spawn.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include "core/compiling.h"
#include "core/source.h"

extern char** environ;

namespace foundry::host {
namespace {

// Runs `command`; `said` gets its output. Returns its exit status, or -1 if it could not be started. It is in a process
// group of its own: Ctrl-C stops this process when the compiler is done, and not the compiler half way.
int run(const std::vector<std::string>& command, std::string& said) {
  std::vector<char*> argv;
  for (const std::string& part : command) argv.push_back(const_cast<char*>(part.c_str()));
  argv.push_back(nullptr);
  int ends[2];
  TORCH_CHECK(pipe(ends) == 0, "torch_foundry: no pipe to the C++ compiler: ", strerror(errno));
  for (const int end : ends) fcntl(end, F_SETFD, FD_CLOEXEC);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (const int stream : {1, 2}) posix_spawn_file_actions_adddup2(&actions, ends[1], stream);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  // A sanitizer preloaded into this process is not meant for the compiler.
  std::vector<char*> environment;
  for (char** e = environ; *e; e++)
    if (strncmp(*e, "LD_PRELOAD=", 11) != 0) environment.push_back(*e);
  environment.push_back(nullptr);
  pid_t child;
  const int error = posix_spawnp(&child, argv[0], &actions, &attributes, argv.data(), environment.data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  char buffer[4096];
  for (ssize_t n = 1; error == 0 && n != 0;) {
    n = read(ends[0], buffer, sizeof buffer);
    if (n < 0 && errno != EINTR) break;
    if (n > 0) said.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  if (error) return -1;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// What the compiler says of its version, with the machine: part of every key. It is asked when the first kernel is
// used, not when the package is imported: a Mac without developer tools then offers to install them.
std::string identity_of(const Toolchain& toolchain) {
  static std::mutex mutex;
  static std::map<std::vector<std::string>, std::string> known;
  std::lock_guard<std::mutex> lock(mutex);
  if (const auto found = known.find(toolchain.compiler); found != known.end()) return found->second;
  std::vector<std::string> command = toolchain.compiler;
  command.emplace_back("--version");
  std::string said;
  utsname system{};
  if (run(command, said) != 0 || uname(&system) != 0) return toolchain.built_by;
  return known[toolchain.compiler] = said.substr(0, said.find('\n')) + ' ' + system.machine;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::vector<std::string> command_of(const Toolchain& toolchain, const std::vector<std::string>& flags) {
  std::vector<std::string> command = toolchain.compiler;
  command.insert(command.end(), flags.begin(), flags.end());
  for (const char* folder : {"", "/prelude", "/../prelude"})
    command.insert(command.end(), {"-I", toolchain.include_dir + folder});
  return command;
}

// What a kernel is linked with on Linux. By itself the compiler adds libstdc++, which is a sixth of what a small kernel
// costs and of which it has next to nothing; the runtime has brought that into the process.
const std::vector<std::string>& libraries() {
#if defined(__linux__)
  static const auto* names = new std::vector<std::string>{"-nodefaultlibs", "-lm", "-lgcc", "-lc"};
#else
  static const auto* names = new std::vector<std::string>;
#endif
  return *names;
}

// Headers that the compiler has read already, for kernels to include first: a quarter of what a kernel costs. GCC and
// clang take NAME.gch where they are told to include NAME.
struct Precompiled {
  std::mutex mutex;
  std::map<std::string, std::string> paths; // by content; empty: it doesn't work, and nothing else depends on it

  std::string find(const Toolchain& toolchain, const std::string& header, const std::string& key,
                   const std::vector<std::string>& flags) {
    const std::string name = content_hash(key + '\n' + toolchain.include_dir + '\n' + header) + ".h";
    std::lock_guard<std::mutex> lock(mutex); // others wait: compiling it takes as long as a kernel
    if (const auto found = paths.find(name); found != paths.end()) return found->second;
    const auto text = find_entry(toolchain.cache, name);
    std::string& path = paths[name];
    path = text ? text->path : write(toolchain.cache, name, "#include \"" + header + "\"\n");
    if (text && find_entry(toolchain.cache, name + ".gch")) return path;
    NewEntry entry(toolchain.cache, name + ".gch"); // of a file with the name that it is looked for by: clang asks
    std::vector<std::string> command = command_of(toolchain, flags);
    command.insert(command.end(), {"-x", "c++-header", path, "-o", entry.part()});
    std::string said;
    if (run(command, said) == 0)
      entry.keep();
    else
      path.clear();
    return path;
  }

  // Clang doesn't take one whose sources have been installed again since.
  void give_up(const std::string& path) {
    std::lock_guard<std::mutex> lock(mutex);
    for (auto& [name, known] : paths)
      if (known == path) known.clear();
  }

private:
  static std::string write(const DiskCache& cache, const std::string& name, const std::string& content) {
    NewEntry entry(cache, name);
    NewEntry::write(entry.part(), content);
    return entry.keep();
  }
};

Precompiled& precompiled() {
  static auto* headers = new Precompiled; // never destroyed: other threads may compile until the process ends
  return *headers;
}

} // namespace

std::string compile_library(const Toolchain& toolchain, const std::string& label, const std::string& text,
                            const std::vector<std::string>& flags, const std::string& header) {
  std::string key = identity_of(toolchain) + '\n' + toolchain.prelude_hash;
  for (const std::string& flag : flags) key += '\n' + flag;
  const std::string name = content_hash(key + '\n' + text) + ".so";
  if (const auto found = find_entry(toolchain.cache, name)) return found->path;

  const CompileNotice notice;
  NewEntry entry(toolchain.cache, name);
  NewEntry::write(entry.source(), text);
  std::vector<std::string> command = command_of(toolchain, flags);
  command.insert(command.end(), {entry.source(), "-o", entry.part()});
  std::string said;
  const std::string first = header.empty() ? "" : precompiled().find(toolchain, header, key, flags);
  if (!first.empty()) {
    std::vector<std::string> quick = command;
    quick.insert(quick.end(), {"-include", first});
    quick.insert(quick.end(), libraries().begin(), libraries().end());
    if (run(quick, said) == 0) return entry.keep();
    said.clear(); // of a kernel that is wrong, the compiler says it again
  }
  const int status = run(command, said);
  if (status == 0 && !first.empty()) precompiled().give_up(first); // or a library: one that has no libgcc
  TORCH_CHECK(status != -1, "torch_foundry: cannot start the C++ compiler '", joined(toolchain.compiler),
              "' (needed to compile ", label, "; set CXX to one that exists)");
  TORCH_CHECK(status == 0, "torch_foundry: ", label, " does not compile:", first_errors(said));
  return entry.keep();
}

} // namespace foundry::host
