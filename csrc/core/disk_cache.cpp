#include "core/disk_cache.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <dlfcn.h>
#include <fcntl.h>
#include <filesystem>
#include <mutex>
#include <set>
#include <sstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <c10/util/Exception.h>
#include <torch/library.h>

#include "core/source.h"

namespace foundry {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAdvice = "set TORCH_FOUNDRY_CACHE to a folder of your own that can be written";
constexpr auto kStale = std::chrono::minutes(10); // a shared folder has processes of other machines

std::mutex mutex;
std::string& fallback() {
  static auto* folder = new std::string;
  return *folder;
}

// A file that is open, until the end of its scope.
struct File {
  int fd;
  File(const std::string& path, int flags) : fd(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~File() {
    if (fd >= 0) ::close(fd);
  }
  File(const File&) = delete;
};

std::string sum_path(const std::string& path) { return path + ".sum"; }
std::string sum_of(const std::string& content) {
  return content_hash(content) + ' ' + std::to_string(content.size()) + '\n';
}

// Whose files are run: this user's, root's, and those of the package's owner, who could change the package as well.
bool is_trusted(uid_t owner) {
  static const uid_t package = [] {
    Dl_info here;
    struct stat about;
    const bool found = dladdr(reinterpret_cast<void*>(&find_entry), &here) && stat(here.dli_fname, &about) == 0;
    return found ? about.st_uid : 0;
  }();
  return owner == geteuid() || owner == 0 || owner == package;
}

// Why what lies at `path` must not be run; empty if it may be, and if nothing is there.
std::string distrust(const struct stat& about) {
  if (!is_trusted(about.st_uid)) return "belongs to another user (uid " + std::to_string(about.st_uid) + ")";
  return about.st_mode & S_IWOTH ? "can be written by every user" : "";
}
std::string distrust(const std::string& path) {
  struct stat about;
  return stat(path.c_str(), &about) == 0 ? distrust(about) : "";
}

std::optional<std::string> read_file(const std::string& path, bool own) {
  const File file(path, O_RDONLY);
  struct stat about;
  if (file.fd < 0 || fstat(file.fd, &about) != 0 || !S_ISREG(about.st_mode)) return {};
  if (const std::string problem = own ? distrust(about) : ""; !problem.empty()) {
    TORCH_WARN("torch_foundry: ", path, ' ', problem, ", so it is not used");
    return {};
  }
  std::string content(static_cast<size_t>(about.st_size), '\0');
  size_t have = 0;
  while (have < content.size()) {
    const ssize_t n = ::read(file.fd, content.data() + have, content.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return {};
    have += static_cast<size_t>(n);
  }
  return content;
}

std::optional<std::string> read_whole(const std::string& path, bool own) {
  const auto read = [&]() -> std::optional<std::string> {
    std::optional<std::string> content = read_file(path, own);
    return content && read_file(sum_path(path), own) == sum_of(*content) ? content : std::nullopt;
  };
  if (access(path.c_str(), R_OK) != 0) return {};
  if (auto content = read()) return content;
  const File folder(fs::path(path).parent_path().string(), O_RDONLY);
  flock(folder.fd, LOCK_SH); // now not between the two renames of another process
  return read();
}

void sync(const std::string& path) {
  const File file(path, O_RDONLY);
  if (file.fd >= 0) fsync(file.fd); // where a file system can't, the sum shows what is missing
}

// The process that made a file called KEY.PID.SERIAL.., 0 for other names.
pid_t maker(const std::string& name) {
  const auto is_number = [](const std::string& text) {
    return !text.empty() && text.size() < 10 && std::all_of(text.begin(), text.end(), ::isdigit);
  };
  std::string before, part;
  for (std::istringstream parts(name); std::getline(parts, part, '.'); before = part)
    if (is_number(before) && is_number(part)) return std::stoi(before);
  return 0;
}

void remove_stale_parts(const std::string& folder) {
  std::error_code error;
  const auto now = fs::file_time_type::clock::now();
  for (const auto& file : fs::directory_iterator(folder, error)) {
    const pid_t pid = maker(file.path().filename().string());
    if (!pid || kill(pid, 0) == 0 || errno != ESRCH) continue;
    const auto written = fs::last_write_time(file.path(), error);
    if (!error && now - written > kStale) fs::remove(file.path(), error);
  }
}

// Why nothing can be kept in `folder`, which is made; empty if it can.
std::string unusable(const std::string& folder) {
  if (folder.empty()) return "is nowhere";
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return "can't be made (" + error.message() + ")";
  if (access(folder.c_str(), W_OK) != 0) return std::string("can't be written (") + strerror(errno) + ")";
  const std::string problem = distrust(folder);
  return problem.empty() ? "" : problem + ", who could run code as you that way";
}

std::string fallback_for(const std::string& folder) {
  std::lock_guard<std::mutex> lock(mutex);
  return fallback().empty() ? "" : fallback() + '/' + fs::path(folder).filename().string();
}

// The folder for new entries: `folder`, or the fallback where that can't be used.
std::string place_for(const std::string& folder) {
  const std::string problem = unusable(folder);
  std::string place = folder;
  if (!problem.empty()) {
    place = fallback_for(folder);
    const std::string other = unusable(place);
    TORCH_CHECK(other.empty(), "torch_foundry: the kernel cache ", folder, ' ', problem, ", and ", place, ' ', other,
                ": ", kAdvice);
  }
  std::lock_guard<std::mutex> lock(mutex);
  static auto* seen = new std::set<std::string>;
  if (!seen->insert(folder).second) return place;
  remove_stale_parts(place);
  if (!problem.empty())
    TORCH_WARN("torch_foundry: the kernel cache ", folder, ' ', problem, ". Kernels are kept in ", place, " instead; ",
               kAdvice);
  return place;
}

} // namespace

std::optional<std::string> read_whole(const std::string& path) { return read_whole(path, false); }

std::optional<CacheEntry> find_entry(const DiskCache& cache, const std::string& name) {
  const auto look = [&](const std::string& folder, bool own) -> std::optional<CacheEntry> {
    const std::string path = folder + '/' + name;
    if (own && !distrust(folder).empty()) return {};
    if (auto content = read_whole(path, own)) return CacheEntry{path, std::move(*content)};
    return {};
  };
  for (const std::string& folder : cache.read_only)
    if (auto found = look(folder, false)) return found;
  if (auto found = look(cache.folder, true)) return found;
  const std::string other = fallback_for(cache.folder);
  return other.empty() ? std::nullopt : look(other, true);
}

NewEntry::NewEntry(const DiskCache& cache, const std::string& name) : folder_(place_for(cache.folder)) {
  static std::atomic<int> serial{0};
  path_ = folder_ + '/' + name;
  part_ = path_ + '.' + std::to_string(getpid()) + '.' + std::to_string(serial++) + ".part";
}

NewEntry::~NewEntry() {
  for (const std::string& file : {part_, source(), sum_path(part_)}) unlink(file.c_str());
}

void NewEntry::write(const std::string& path, const std::string& content) {
  const File file(path, O_WRONLY | O_CREAT | O_TRUNC);
  size_t done = 0;
  while (file.fd >= 0 && done < content.size()) {
    const ssize_t n = ::write(file.fd, content.data() + done, content.size() - done);
    if (n < 0 && errno != EINTR) break;
    done += n > 0 ? static_cast<size_t>(n) : 0;
  }
  TORCH_CHECK(file.fd >= 0 && done == content.size(), "torch_foundry: cannot write ", path, ": ", strerror(errno), " (",
              kAdvice, ")");
}

std::string NewEntry::keep() {
  const std::optional<std::string> content = read_file(part_, false);
  TORCH_CHECK(content, "torch_foundry: cannot read ", part_, ": ", strerror(errno));
  const std::string sum = sum_path(part_);
  write(sum, sum_of(*content));
  for (const std::string& file : {part_, sum}) sync(file);
  const File folder(folder_, O_RDONLY);
  flock(folder.fd,
        LOCK_EX); // until it is closed; where a file system has none, a reader between the two compiles again
  const bool done = rename(part_.c_str(), path_.c_str()) == 0 && rename(sum.c_str(), sum_path(path_).c_str()) == 0;
  TORCH_CHECK(done, "torch_foundry: cannot write ", path_, ": ", strerror(errno), " (", kAdvice, ")");
  fsync(folder.fd);
  return path_;
}

void set_cache_fallback(const std::string& folder) {
  std::lock_guard<std::mutex> lock(mutex);
  fallback() = folder;
}

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) { m.def("_cache_fallback(str folder) -> ()", &set_cache_fallback); }

} // namespace foundry
