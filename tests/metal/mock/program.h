// The mock's compiler: MSL text to kernels that the host executor runs.
#pragma once

#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/executor.h"

namespace mock {

// An error of the shader's author, in the form of Apple's compiler: "program_source:3:5: error: ...".
struct CompileError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Parameter {
  std::string name, kind; // "buffer", "threadgroup" or "builtin"
  unsigned index;
  bool constant;           // in constant address space
  std::string optional_on; // the function constant that switches it on
};

struct ProgramKernel {
  std::string name, entry, signature;
  std::vector<Parameter> parameters;
  std::vector<std::string> reads; // names of function constants
};

struct ProgramConstant {
  std::string name, type;
  bool required;
};

struct Program {
  std::string translated;
  std::map<std::string, ProgramKernel> kernels; // by host name
  std::map<unsigned, ProgramConstant> constants;
};

// Throws CompileError. Texts that differ in their last explicit instantiation only are translated once.
std::shared_ptr<const Program> compile_program(const std::string& text, int metal_version);

// A kernel of a program for the host executor, with its function constants. Throws CompileError.
std::unique_ptr<foundry::Pipeline> compile_kernel(const Program& program, const ProgramKernel& kernel,
                                                  const std::vector<foundry::Constant>& constants);

} // namespace mock
