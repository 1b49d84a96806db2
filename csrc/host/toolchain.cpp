#include "host/toolchain.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <spawn.h>
#include <sstream>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <c10/util/Exception.h>

#include "core/source.h"

extern char** environ;

namespace foundry::host {
namespace {

bool exists(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

void make_directories(const std::string& path) {
  for (size_t i = 1; i <= path.size(); i++) {
    if (i < path.size() && path[i] != '/') continue;
    const std::string part = path.substr(0, i);
    TORCH_CHECK(mkdir(part.c_str(), 0755) == 0 || errno == EEXIST, "torch_foundry: cannot create the kernel cache ",
                part, ": ", strerror(errno));
  }
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs `command` with stderr in `log`; returns its exit status, or -1 if it could not be started.
int run(const std::vector<std::string>& command, const std::string& log) {
  std::vector<char*> argv;
  for (const std::string& part : command) argv.push_back(const_cast<char*>(part.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  // A sanitizer preloaded into this process is not meant for the compiler.
  std::vector<char*> environment;
  for (char** e = environ; *e; e++)
    if (strncmp(*e, "LD_PRELOAD=", 11) != 0) environment.push_back(*e);
  environment.push_back(nullptr);
  pid_t child;
  const int error = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (error) return -1;
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The lines of a compiler's output that say what is wrong, at most `limit` of them.
std::string first_errors(const std::string& log, int limit) {
  std::istringstream lines(log);
  std::string line, picked;
  while (limit > 0 && std::getline(lines, line)) {
    if (line.find("error") == std::string::npos && line.find("required from") == std::string::npos) continue;
    picked += "\n  " + line;
    limit--;
  }
  return picked.empty() ? "\n  " + log.substr(0, 2000) : picked;
}

} // namespace

std::string compile_library(const Toolchain& toolchain, const std::string& label, const std::string& text,
                            const std::vector<std::string>& flags) {
  std::string key = toolchain.identity + '\n' + toolchain.prelude_hash;
  for (const std::string& flag : flags) key += '\n' + flag;
  const std::string name = content_hash(key + '\n' + text);
  for (const std::string& directory : toolchain.read_only_caches)
    if (std::string path = directory + '/' + name + ".so"; exists(path)) return path;
  const std::string library = toolchain.cache + '/' + name + ".so";
  if (exists(library)) return library;

  make_directories(toolchain.cache);
  static std::atomic<int> serial{0};
  const std::string stem =
      toolchain.cache + '/' + name + '.' + std::to_string(getpid()) + '.' + std::to_string(serial++);
  const std::string source = stem + ".cpp", object = stem + ".so", log = stem + ".log";
  std::ofstream(source) << text;
  std::vector<std::string> command{toolchain.compiler};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(), {"-I", toolchain.include_dir, "-I", toolchain.include_dir + "/prelude", "-I",
                                 toolchain.include_dir + "/../prelude", source, "-o", object});
  const int status = run(command, log);
  const std::string messages = read_file(log);
  unlink(source.c_str());
  unlink(log.c_str());
  TORCH_CHECK(status != -1, "torch_foundry: cannot start the C++ compiler '", toolchain.compiler,
              "' (needed to compile ", label, "; set CXX to one that exists)");
  TORCH_CHECK(status == 0, "torch_foundry: ", label, " does not compile:", first_errors(messages, 12));
  TORCH_CHECK(rename(object.c_str(), library.c_str()) == 0, "torch_foundry: cannot write ", library, ": ",
              strerror(errno));
  return library;
}

} // namespace foundry::host
