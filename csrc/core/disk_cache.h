// Compiled things that are kept on disk from one process to the next. Beside each lies its sum (NAME.sum: SHA-1 and
// length), so what was cut short or changed is not used: neither loaded, which would kill the process, nor run.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace foundry {

struct DiskCache {
  std::vector<std::string> read_only; // looked in, never written: what the package ships
  std::string folder;                 // of this user
};

struct CacheEntry {
  std::string path, content;
};

// The entry as it was kept. Nothing where there is none, where it isn't what was written, and where it is another
// user's, who could run code as this one that way.
std::optional<CacheEntry> find_entry(const DiskCache& cache, const std::string& name);

// A file's content, if it is what the sum beside it says. For what others than this cache load.
std::optional<std::string> read_whole(const std::string& path);

// An entry on its way. Safe between threads and processes; a process that is killed leaves files that a later one
// removes. A folder that can't be used (no place to write, another user's) is replaced by the fallback, with a warning.
class NewEntry {
public:
  NewEntry(const DiskCache& cache, const std::string& name);
  ~NewEntry(); // removes what was not kept
  NewEntry(const NewEntry&) = delete;

  const std::string& part() const { return part_; }                       // the file to be written
  std::string source() const { return part_ + ".cpp"; }                   // another that may be written on the way
  std::string keep();                                                     // gives the part its name; returns its path
  static void write(const std::string& path, const std::string& content); // an error says why it can't be written

private:
  std::string folder_, path_, part_;
};

// Where entries go whose folder can't be used; private to the user. Empty: nowhere, which is an error.
void set_cache_fallback(const std::string& folder);

} // namespace foundry
