// What a user sees of a compiler: that it runs, and what it says.
#pragma once

#include <string>

namespace foundry {

// For as long as a kernel is compiled. Once these have lasted a second, a line on stderr says what the process waits
// for.
class CompileNotice {
public:
  CompileNotice();
  ~CompileNotice();
  CompileNotice(const CompileNotice&) = delete;
};

// The same for as long as a known number of kernels is compiled: on a terminal the line is a bar, with the time left.
class CompileProgress {
public:
  explicit CompileProgress(int kernels);
  ~CompileProgress();
  void one(); // is there. From any thread

private:
  const int kernels_; // known before the notice begins
  const CompileNotice notice_;
};

// The lines of a compiler's output that say what is wrong, at most twelve of them; all of it if none does.
std::string first_errors(const std::string& log);

} // namespace foundry
