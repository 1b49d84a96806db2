#include "program.h"

#import <Foundation/Foundation.h>

#include <algorithm>
#include <dlfcn.h>
#include <fstream>
#include <mutex>
#include <regex>
#include <set>
#include <sstream>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <c10/core/Device.h>

#include "core/source.h"
#include "objects.h"

namespace mock {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Where translations are kept: beside this library, apart for each state of the front end (build.py writes the file).
const std::string& directory() {
  static const std::string* path = [] {
    Dl_info info;
    dladdr(reinterpret_cast<void*>(&compile_program), &info);
    const std::string library = info.dli_fname, here = library.substr(0, library.rfind('/'));
    std::string front_end = read_file(here + "/front_end");
    auto* made = new std::string(here + "/translated-" + front_end);
    mkdir(made->c_str(), 0755);
    return made;
  }();
  return *path;
}

std::vector<std::string> strings(NSArray* array) {
  std::vector<std::string> out;
  for (NSUInteger i = 0; i < [array count]; i++) out.push_back(text([array objectAtIndex:i]));
  return out;
}

bool is_true(NSDictionary* entry, NSString* key) { return [[entry objectForKey:key] boolValue]; }

std::string string_at(NSDictionary* entry, NSString* key) {
  id value = [entry objectForKey:key];
  return [value isKindOfClass:[NSString class]] ? text(value) : std::string();
}

ProgramKernel kernel_of(NSDictionary* entry) {
  ProgramKernel kernel{string_at(entry, @"name"), string_at(entry, @"entry"), string_at(entry, @"signature"), {}, {}};
  for (NSDictionary* argument in [entry objectForKey:@"args"]) {
    id index = [argument objectForKey:@"index"];
    kernel.parameters.push_back({string_at(argument, @"name"), string_at(argument, @"kind"),
                                 [index isKindOfClass:[NSNumber class]] ? [index unsignedIntValue] : 0,
                                 string_at(argument, @"address_space") == "constant",
                                 string_at(argument, @"optional_on")});
  }
  kernel.reads = strings([entry objectForKey:@"reads"]);
  return kernel;
}

struct Translation {
  Program program;
  std::vector<ProgramKernel> templates;
};

Translation parse_translation(const std::string& json) {
  NSData* data = [NSData dataWithBytes:json.data() length:json.size()];
  NSDictionary* root = [NSJSONSerialization JSONObjectWithData:data options:0 error:nil];
  TORCH_CHECK(root, "the mock's translation is no JSON");
  Translation out;
  out.program.translated = string_at(root, @"source");
  for (NSDictionary* entry in [root objectForKey:@"kernels"]) {
    ProgramKernel kernel = kernel_of(entry);
    out.program.kernels.emplace(kernel.name, kernel);
  }
  for (NSDictionary* entry in [root objectForKey:@"templates"]) out.templates.push_back(kernel_of(entry));
  for (NSDictionary* entry in [root objectForKey:@"function_constants"])
    out.program.constants[[[entry objectForKey:@"index"] unsignedIntValue]] = {
        string_at(entry, @"name"), string_at(entry, @"type"), is_true(entry, @"required")};
  return out;
}

// The text's first name for itself, which a #line directive gives; else Apple's.
std::string main_file(const std::string& source) {
  std::smatch found;
  static const std::regex first_line("^\\s*#(?:line)? *1 \"([^\"\n]*)\"");
  return std::regex_search(source, found, first_line, std::regex_constants::match_continuous) ? found[1].str()
                                                                                              : "program_source";
}

// "file:3: message" and "file:3:5: error: message" in Apple's form.
std::string apple_style(const std::string& messages) {
  std::istringstream lines(messages);
  std::string line, out;
  static const std::regex place("^\\s*([^:]+):(\\d+):(?:(\\d+):)? *(?:(?:fatal )?error: *)?(.*)$");
  std::smatch found;
  while (std::getline(lines, line))
    if (std::regex_match(line, found, place))
      out += found[1].str() + ":" + found[2].str() + ":" + (found[3].matched ? found[3].str() : "1") +
             ": error: " + found[4].str() + "\n";
  return out.empty() ? messages : out;
}

std::string translate(const std::string& source, int metal_version) {
  const std::string name = main_file(source);
  const std::string key = foundry::content_hash(std::to_string(metal_version) + name + '\0' + source);
  const std::string stem = directory() + "/" + key, result = stem + ".json";
  if (access(result.c_str(), R_OK) == 0) return read_file(result);
  const std::string own = stem + "." + std::to_string(getpid());
  std::ofstream(own + ".metal") << source;
  // the compiler must not inherit a sanitizer that is preloaded into this process
  const std::string command = "LD_PRELOAD= '" MOCK_PYTHON "' '" MOCK_DIRECTORY "/translate.py' '" + own + ".metal' '" +
                              own + ".json' '" + name + "' " + std::to_string(metal_version);
  const int status = system(command.c_str());
  unlink((own + ".metal").c_str());
  const std::string text = read_file(own + ".json");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 1 && !text.empty()) {
    unlink((own + ".json").c_str());
    throw CompileError(apple_style(text));
  }
  TORCH_CHECK(status == 0, "the mock's translator failed: ", command);
  rename((own + ".json").c_str(), result.c_str());
  return text;
}

// The text without line markers and the blank lines that come with them.
std::string code_of(const std::string& translated) {
  std::istringstream lines(translated);
  std::string line, out;
  while (std::getline(lines, line))
    if (line.find_first_not_of(" \t") != std::string::npos && line.rfind("# ", 0) != 0) out += line + '\n';
  return out;
}

// The package's own shaders: where the translation is that of the host executor but for line markers, the host's is
// taken, so that a kernel is compiled once for both.
std::string as_the_host_has_it(const std::string& source, const std::string& translated) {
  const std::string path = main_file(source);
  try {
    const auto known = foundry::find_source(path.substr(path.rfind('/') + 1));
    if (code_of(known->translated) == code_of(translated)) return known->translated;
  } catch (const c10::Error&) { // compile_shader's
  }
  return translated;
}

std::set<std::string> lines_of(const std::string& translated) {
  std::istringstream code(code_of(translated));
  std::set<std::string> lines;
  for (std::string line; std::getline(code, line);) lines.insert(line);
  return lines;
}

// The same for a text of several shaders, one behind the other, with the headers of all but once: the host's
// translation of the one that has the kernel, if the text has every line of it.
std::string as_the_host_has_it(const std::string& translated, const ProgramKernel& kernel) {
  static const std::regex marker("# \\d+ \"(?:[^\"]*/)?([^\"/]+\\.metal)\"");
  std::set<std::string> files;
  for (auto each = std::sregex_iterator(translated.begin(), translated.end(), marker); each != std::sregex_iterator();
       ++each)
    files.insert((*each)[1]);
  if (files.size() < 2) return translated;
  const std::set<std::string> lines = lines_of(translated);
  for (const std::string& file : files) {
    try {
      const auto known = foundry::find_source(file);
      const std::set<std::string> own = lines_of(known->translated);
      const bool has_it = known->translated.find(kernel.signature) != std::string::npos;
      if (has_it && std::includes(lines.begin(), lines.end(), own.begin(), own.end())) return known->translated;
    } catch (const c10::Error&) { // compile_shader's
    }
  }
  return translated;
}

const Translation& translation(const std::string& source, int metal_version) {
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<int, std::string>, Translation>;
  std::lock_guard<std::mutex> lock(mutex);
  const std::pair<int, std::string> key{metal_version, source};
  auto found = known->find(key);
  if (found == known->end()) {
    found = known->emplace(key, parse_translation(translate(source, metal_version))).first;
    std::string& translated = found->second.program.translated;
    translated = as_the_host_has_it(source, translated);
  }
  return found->second;
}

// `template [[host_name("NAME")]] [[kernel]] decltype(ENTRY) ENTRY;`: the kernel that such a line makes, from the
// templates of the text before it. No name: the line is another.
ProgramKernel instance_of(const std::string& line, const std::vector<ProgramKernel>& templates) {
  static const std::regex form("template *\\[\\[ *host_name\\(\"([^\"]+)\"\\) *\\]\\] *(?:\\[\\[kernel\\]\\]|kernel) "
                               "*decltype\\((.+)\\) *([^;]+);\\s*");
  std::smatch found;
  if (!std::regex_match(line, found, form) || found[2].str() != found[3].str()) return {};
  const std::string entry = found[2].str(), function = entry.substr(0, entry.find('<'));
  for (const ProgramKernel& kernel : templates) {
    if (kernel.name != function && kernel.signature != function + "_msl_args") continue;
    ProgramKernel instance = kernel;
    instance.name = found[1].str();
    instance.entry = entry;
    return instance;
  }
  return {};
}

} // namespace

// The program of a text whose last lines are instances, which are left out of what is translated: so texts that differ
// in them only share a translation, and kernels that were compiled for it. Null: the text ends otherwise.
static std::shared_ptr<const Program> with_last_instances(const std::string& text, int metal_version) {
  std::vector<std::string> lines;
  size_t end = text.size();
  while (end > 0) {
    const size_t start = end < 2 ? 0 : text.rfind('\n', end - 2) + 1;
    const std::string line = text.substr(start, end - start);
    if (line.rfind("template", 0) != 0) break;
    lines.push_back(line);
    end = start;
  }
  if (lines.empty()) return nullptr;
  const Translation& base = translation(text.substr(0, end), metal_version);
  auto program = std::make_shared<Program>(base.program);
  for (const std::string& line : lines) {
    const ProgramKernel kernel = instance_of(line, base.templates);
    if (kernel.name.empty()) return nullptr;
    MOCK_RULE("kernel-name", !program->kernels.count(kernel.name), "two kernels are named ", kernel.name);
    program->kernels.emplace(kernel.name, kernel);
  }
  return program;
}

std::shared_ptr<const Program> compile_program(const std::string& text, int metal_version) {
  @autoreleasepool {
    if (auto program = with_last_instances(text, metal_version)) return program;
    auto program = std::make_shared<Program>(translation(text, metal_version).program);
    // Errors of the text belong here, as Apple's compiler reports them now. One kernel shows those of all functions
    // that aren't templates.
    if (settings().run && !program->kernels.empty()) compile_kernel(*program, program->kernels.begin()->second, {});
    return program;
  }
}

std::unique_ptr<foundry::Pipeline> compile_kernel(const Program& program, const ProgramKernel& kernel,
                                                  const std::vector<foundry::Constant>& constants) {
  const std::string text = settings().whole ? program.translated : as_the_host_has_it(program.translated, kernel);
  const foundry::Source source{"program_source", "", text, foundry::content_hash(text)};
  foundry::Kernel host{"program_source", kernel.entry, {}, constants, kernel.signature, ""};
  try {
    return foundry::executor(c10::Device(c10::kCPU)).compile(source, host);
  } catch (const c10::Error& error) {
    const std::string what = error.what_without_backtrace();
    const size_t messages = what.find("does not compile:\n");
    if (messages == std::string::npos) throw;
    throw CompileError(apple_style(what.substr(messages + 18)));
  }
}

} // namespace mock
