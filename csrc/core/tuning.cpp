#include "core/tuning.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <torch/library.h>

#include "core/executor.h"
#include "core/kernel_list.h"
#include "core/quant_table.h"
#include "core/subnormals.h"
#include "core/tensors.h"
#include "core/tuning_table.h"
#include "linear/linear.h"

namespace foundry::tuning {
namespace {

constexpr int64_t kAny = INT64_MAX; // as in tuning_table.cpp

// What a choice may be made of, in its order.
struct Parameter {
  const char* name;
  std::vector<int64_t> allowed;
};
struct Space {
  const char* op;
  std::vector<Parameter> parameters;
};
const std::vector<Parameter>& linear_parameters() {
  static const std::vector<Parameter> parameters = {{"outputs", {1, 2, 4, 8}},
                                                    {"steps", {0, 1, 2, 4}},
                                                    {"split", {1, 2, 4, 8, 16}},
                                                    {"simdgroups", {1, 2, 4, 8, 16, 32}},
                                                    {"chains", {1, by_subnormals, 4}}};
  return parameters;
}
std::vector<Parameter> matrices_parameters(Parameter last, const std::vector<int64_t>& teams = {1, 2, 4, 8, 16}) {
  return {{"outputs", {0, 16, 32}}, {"steps", {2, 3, 4}}, {"split", teams}, {"simdgroups", teams}, std::move(last)};
}
const Space& space(Op op) {
  static const Parameter groups = {"groups", {1, 132, 264, 528, 1056, 65535}};
  static const std::vector<int64_t> teams = {1, 2, 3, 4, 5, 6, 8, 9, 10, 12, 15, 16}; // ten steps of K are five's
  static const Space spaces[kOps] = {
      {"linear", linear_parameters()},
      {"attention",
       {{"keys", {128, 256, 512, 1024}},
        {"simdgroups", {4, 8}},
        {"lanes", {1, 8, 32}},
        {"far_keys", {128, 256, 512, 1024, 2048}},
        {"groups", {1, 64, 256, 1024}},
        {"rows", {4, 8, 16}}}},
      {"norm_linear", linear_parameters()},
      {"moe_glu", linear_parameters()},
      {"moe_down", linear_parameters()},
      {"linear_routes",
       {{"rows", {8, 16, 32, 48, 64}}, // 8: what rows share a reading of W for, whose bits are promised
        {"matrix", {0, 32, 64, 128}},
        {"tiles", {0, 32, 64, 128, 192, 256, 512}},
        {"backward", {8, 16, 32, 64, 128, 256, 512}},
        {"experts", {16, 32, 64, 128, 256, 512}}, // of one: moe_linear
        {"tensors", {0, 32, 64, 128, 192, 256, 512}}}},
      {"matrices", matrices_parameters(groups, teams)},
      {"norm_matrices", matrices_parameters(groups, teams)},
      {"linear_matrix", matrices_parameters({"blocks", {1, 2, 4, 8}})},
      {"moe_matrix", matrices_parameters({"blocks", {1, 2, 4}})},
  };
  return spaces[static_cast<int>(op)];
}
// Whether a choice is a LinearChoice.
bool by_codes(Op op) { return op != Op::attention && op != Op::linear_matrix && !for_any_rows(op); }

Op op_named(std::string_view name) {
  std::string known;
  for (int op = 0; op < kOps; op++) {
    if (name == space(Op(op)).op) return Op(op);
    known += (op ? ", " : "") + std::string(space(Op(op)).op);
  }
  TORCH_CHECK(false, "tuning: expected one of the ops ", known, ", got ", name);
}

// Why a choice cannot be launched, or null. The limits are Apple's: 1024 threads, 32 KiB of threadgroup memory; and 32
// sums a lane, beyond which they no longer stay in registers.
const char* objection(Op op, int rows, const Choice& c) {
  if (op == Op::attention) {
    if (c[0] % (32 * c[1]) || c[3] % (32 * c[1])) return "keys and far_keys must be multiples of 32 * simdgroups";
    return nullptr; // the kernel's threadgroup memory is checked where it is declared
  }
  if (op == Op::linear_routes) return nullptr;
  if (!by_codes(op))
    return c[3] % c[2] ? "simdgroups must be a multiple of split" : nullptr; // memory is the GPU's to refuse
  const auto [outputs, steps, split, simdgroups, chains, none] = c;
  if (simdgroups % split) return "simdgroups must be a multiple of split";
  if (simdgroups * simd_width > 1024) return "more than 1024 threads";
  if (outputs * rows > 32) return "outputs * rows must be at most 32";
  if (outputs * steps > 8) return "outputs * steps must be at most 8";
  if (simdgroups * outputs * rows * sizeof(float) > kThreadgroupBytes) return "more than 32 KiB of threadgroup memory";
  return nullptr;
}

void check_choice(Op op, int rows, const Choice& c) {
  const Space& s = space(op);
  for (size_t i = 0; i < s.parameters.size(); i++) {
    const Parameter& p = s.parameters[i];
    TORCH_CHECK(std::find(p.allowed.begin(), p.allowed.end(), c[i]) != p.allowed.end(), "tuning: ", s.op, ": ", p.name,
                ": expected one of ", c10::Join(", ", p.allowed), ", got ", c[i]);
  }
  const char* wrong = objection(op, rows, c);
  TORCH_CHECK(!wrong, "tuning: ", s.op, " for ", rows, " rows: ", wrong, ", got ", c10::ArrayRef<uint16_t>(c));
}

std::mutex mutex;
using Place = std::tuple<std::string, Op, int, int>; // family, op, row, bucket
std::map<Place, Choice>& found() {                   // by `tune`, on this machine
  static auto* map = new std::map<Place, Choice>;
  return *map;
}
std::map<std::string, int64_t>& overrides() { // as the environment has them
  static auto* map = new std::map<std::string, int64_t>;
  return *map;
}

// Of a device: the choices for the buckets of an op and a format, made when they are first asked for. Tables and rows
// are kept: a launch on another thread may be reading those that others take the place of.
struct Table {
  std::string family;
  uint32_t generation; // of executors, which have families, and of shaders, by which devices are asked
  std::unique_ptr<std::atomic<const Choice*>[]> rows{new std::atomic<const Choice*>[kOps * quant_formats().size()]()};
};
constexpr int kShapeBuckets = kLinearBuckets / kRowBuckets;
constexpr int buckets(Op op) {
  return op == Op::attention ? kAttentionBuckets : for_any_rows(op) || of_experts(op) ? kShapeBuckets : kLinearBuckets;
}

// The last shape of a bucket: kAny where it has no upper end.
void last_shape(Op op, int bucket, int& rows, int64_t& n, int64_t& k) {
  rows = 1, n = 32 * (bucket + 1), k = 1;
  if (op == Op::attention) return;
  const int k_bucket = bucket % kInputBuckets, n_bucket = bucket / kInputBuckets % kOutputBuckets;
  rows = 1 << (bucket / kInputBuckets / kOutputBuckets);
  n = n_bucket == kOutputBuckets - 1 ? kAny : int64_t(1) << (n_bucket + 8);
  k = k_bucket == kInputBuckets - 1 ? kAny : last_of_input_bucket(k_bucket);
}

Choice built_in_choice(const std::string& family, Op op, const QuantFormat& format, int bucket) {
  int rows;
  int64_t n, k;
  last_shape(op, bucket, rows, n, k);
  for (const Line& line : built_in()) {
    const std::string_view name = line.format;
    if (line.op == op && family.starts_with(line.families) &&
        (name.empty() || name == format.name || (name == "packed" && format.packed())) && rows >= line.rows &&
        n <= line.n && k <= line.k)
      return line.choice;
  }
  if (op == Op::moe_glu) return built_in_choice(family, Op::norm_linear, format, bucket);
  if (op == Op::norm_linear || op == Op::moe_down) return built_in_choice(family, Op::linear, format, bucket);
  TORCH_INTERNAL_ASSERT(false, "no tuning entry for ", family, " ", format.name);
}

// TORCH_FOUNDRY_..: one number for all shapes. Columns are outputs of a threadgroup: outputs * simdgroups / split.
void override_choice(Op op, int rows, Choice& c) {
  const auto given = [](const char* name, int64_t otherwise = 0) {
    auto i = overrides().find(name);
    return static_cast<uint16_t>(i == overrides().end() ? otherwise : i->second);
  };
  if (op == Op::linear_routes) {
    c[0] = given("linear_rows", c[0]), c[1] = given("matrix_rows", c[1]), c[2] = given("tile_rows", c[2]);
    return;
  }
  const uint16_t keys = given("attention_keys");
  if (op == Op::attention && keys) c[0] = c[3] = std::max<uint16_t>(keys, 32 * c[1]);
  if (!by_codes(op)) return;
  auto& [outputs, steps, split, simdgroups, chains, none] = c;
  uint16_t columns = outputs * simdgroups / split;
  if (uint16_t v = given("gemv_cols_per_tg")) columns = v, outputs = std::min(outputs, v);
  if (uint16_t v = given("gemv_split_k")) split = v;
  while (columns / outputs * split > 32 && outputs < 8 && outputs * 2 <= columns && outputs * 2 * rows <= 32)
    outputs *= 2;
  columns = std::min<uint16_t>(columns, 32 / split * outputs);
  simdgroups = columns / outputs * split;
  if (uint16_t v = given("gemv_steps")) steps = v;
  while (outputs * steps > 8) steps /= 2;
}

Choice listed_choice(const std::string& family, Op op, const QuantFormat& format, int bucket) {
  const auto i = found().find({family, op, format.index, bucket});
  return i == found().end() ? built_in_choice(family, op, format, bucket) : i->second;
}

Choice choice_of(const std::string& family, Op op, const QuantFormat& format, int bucket) {
  Choice c = listed_choice(family, op, format, bucket);
  int rows;
  int64_t n, k;
  last_shape(op, bucket, rows, n, k);
  if (by_codes(op)) { // one order of sums for all numbers of rows
    const Choice one = listed_choice(family, op, format, bucket % kShapeBuckets);
    c[2] = one[2];
    c[3] = std::max(c[3], c[2]);
    c[4] = one[4] == by_subnormals && !format.subnormal_codes ? 1 : one[4];
  }
  override_choice(op, rows, c);
  check_choice(op, rows, c);
  return c;
}

std::vector<Choice> make_row(const std::string& family, Op op, int format) {
  std::vector<Choice> choices;
  for (int b = 0; b < buckets(op); b++) choices.push_back(choice_of(family, op, quant_formats()[format], b));
  return choices;
}

// As the environment says, else as `ask`, which asks the device.
template <class Ask> bool says_yes(const char* name, Ask ask) {
  std::unique_lock<std::mutex> lock(mutex);
  if (const auto i = overrides().find(name); i != overrides().end()) return i->second != 0;
  lock.unlock();
  return ask();
}
bool takes_subnormals(c10::Device device) {
  return says_yes("subnormals", [device] { return keeps_subnormals(device); });
}
bool takes_tensors(c10::Device device) {
  return executor(device).has_tensors() &&
         says_yes("tensors", [device] { return tensor_error(device) <= kMostTensorError; });
}

// Choices with subnormal halves become those without, which give the same bits, where the device keeps none; no rows go
// through tensor operations where those are wrong.
void check_device(c10::Device device, Op op, std::vector<Choice>& choices) {
  const bool routes = op == Op::linear_routes;
  const auto asks = [&](const Choice& c) { return routes ? c[5] > 0 : by_codes(op) && c[4] == by_subnormals; };
  if (std::none_of(choices.begin(), choices.end(), asks)) return;
  if (routes ? takes_tensors(device) : takes_subnormals(device)) return;
  for (Choice& c : choices)
    if (asks(c)) (routes ? c[5] : c[4]) = routes ? 0 : 1;
}

std::atomic<Table*> tables[c10::COMPILE_TIME_MAX_DEVICE_TYPES];

Table& table_of(c10::Device device) {
  std::atomic<Table*>& current = tables[static_cast<size_t>(device.type())];
  const uint32_t generation = source_generation().load(std::memory_order_acquire);
  Table* table = current.load(std::memory_order_acquire);
  if (table && table->generation == generation) return *table;
  table = new Table{executor(device).family(), generation}; // threads that come here at once all make one
  current.store(table, std::memory_order_release);
  return *table;
}

void changed() {
  for (auto& table : tables) table.store(nullptr, std::memory_order_release);
}

// ---------------------------------------------------------------------------------------------------- for Python

const QuantFormat& format_of(Op op, const std::string& name) {
  const QuantFormat& format = quant_format(name);
  TORCH_CHECK(op != Op::attention || !format.packed(), "tuning: attention: expected f32, f16 or bf16, got ", name);
  return format;
}

int bucket_of(Op op, int64_t rows, int64_t n, int64_t k) {
  if (op != Op::attention) {
    TORCH_CHECK(rows >= 1 && rows <= 8 && n > 0 && k > 0, "tuning: ", space(op).op,
                ": expected 1 to 8 rows and a shape, got ", rows, " rows, ", n, "x", k);
    TORCH_CHECK(buckets(op) == kLinearBuckets || rows == 1, "tuning: ", space(op).op,
                ": expected 1 row, as all have its choice, got ", rows);
    return linear_bucket(rows, n, k);
  }
  constexpr int most = 32 * kAttentionBuckets;
  TORCH_CHECK(n >= 32 && n <= most && n % 32 == 0, "tuning: attention: expected a head_dim of 32 to ", most, ", got ",
              n);
  return attention_bucket(n);
}

std::pair<Place, Choice> entry_of(const std::string& family, const std::string& op_name, const std::string& format,
                                  int64_t rows, int64_t n, int64_t k, const std::vector<int64_t>& values) {
  const Op op = op_named(op_name);
  TORCH_CHECK(values.size() == space(op).parameters.size(), "tuning: ", op_name, ": expected ",
              space(op).parameters.size(), " numbers, got ", values.size());
  const int bucket = bucket_of(op, rows, n, k);
  Choice choice{};
  for (size_t i = 0; i < values.size(); i++)
    choice[i] = static_cast<uint16_t>(std::clamp<int64_t>(values[i], 0, UINT16_MAX));
  int bucket_rows;
  last_shape(op, bucket, bucket_rows, n, k);
  check_choice(op, bucket_rows, choice);
  return {{family, op, format_of(op, format).index, bucket}, choice};
}

void check_entry(const std::string& op, const std::string& format, int64_t rows, int64_t n, int64_t k,
                 const std::vector<int64_t>& values) {
  entry_of("", op, format, rows, n, k, values);
}

void add(const std::string& family, const std::string& op, const std::string& format, int64_t rows, int64_t n,
         int64_t k, const std::vector<int64_t>& values) {
  const auto [place, choice] = entry_of(family, op, format, rows, n, k, values);
  std::lock_guard<std::mutex> lock(mutex);
  found()[place] = choice;
  changed();
}

void clear() {
  std::lock_guard<std::mutex> lock(mutex);
  found().clear();
  changed();
}

// value: -1 for none.
void set_override(const std::string& name, int64_t value) {
  std::lock_guard<std::mutex> lock(mutex);
  value >= 0 ? void(overrides()[name] = value) : void(overrides().erase(name));
  changed();
}

std::vector<int64_t> numbers(Op op, const Choice& c) {
  return {c.begin(), c.begin() + static_cast<std::ptrdiff_t>(space(op).parameters.size())};
}

std::vector<int64_t> chosen(const std::string& family, const std::string& op_name, const std::string& format,
                            int64_t rows, int64_t n, int64_t k) {
  const Op op = op_named(op_name);
  const QuantFormat& f = format_of(op, format);
  const int bucket = bucket_of(op, rows, n, k);
  std::lock_guard<std::mutex> lock(mutex);
  return numbers(op, choice_of(family, op, f, bucket));
}

// The largest n and k that share a bucket with these; where there is none, 2^63 - 1.
std::vector<int64_t> bucket_end(const std::string& op_name, int64_t rows, int64_t n, int64_t k) {
  const Op op = op_named(op_name);
  int bucket_rows;
  last_shape(op, bucket_of(op, rows, n, k), bucket_rows, n, k);
  return {n, k};
}

// Those that have entries of their own.
std::vector<std::string> families() {
  std::vector<std::string> names;
  for (const Line& line : built_in())
    if (std::find(names.begin(), names.end(), line.families) == names.end()) names.emplace_back(line.families);
  return names;
}

c10::Dict<std::string, std::vector<int64_t>> parameters(const std::string& op_name) {
  c10::Dict<std::string, std::vector<int64_t>> dict; // keeps the order
  for (const Parameter& p : space(op_named(op_name)).parameters) dict.insert(p.name, p.allowed);
  return dict;
}

} // namespace

Choice choose(c10::Device device, Op op, int format, int64_t rows, int64_t n, int64_t k) {
  const int bucket = op == Op::attention ? attention_bucket(n) : linear_bucket(rows, n, k);
  if (KernelList* const list = device.is_meta() ? KernelList::recording() : nullptr) {
    list->ask({space(op).op, quant_formats()[format].name, rows, n, k});
    device = list->device;
  }
  Table& table = table_of(device);
  std::atomic<const Choice*>& choices = table.rows[static_cast<int>(op) * quant_formats().size() + format];
  if (const Choice* found = choices.load(std::memory_order_acquire)) return found[bucket];
  std::vector<Choice> made;
  {
    std::lock_guard<std::mutex> lock(mutex);
    made = make_row(table.family, op, format);
  }
  check_device(device, op, made); // may launch a kernel
  std::lock_guard<std::mutex> lock(mutex);
  if (!choices.load(std::memory_order_acquire))
    choices.store((new std::vector<Choice>(std::move(made)))->data(), std::memory_order_release);
  return choices.load(std::memory_order_acquire)[bucket];
}

TORCH_LIBRARY_FRAGMENT(torch_foundry, m) {
  m.def("_tuning_add(str family, str op, str format, int rows, int n, int k, int[] choice) -> ()", &add);
  m.def("_tuning_check(str op, str format, int rows, int n, int k, int[] choice) -> ()", &check_entry);
  m.def("_tuning_bucket(str op, int rows, int n, int k) -> int[]", &bucket_end);
  m.def("_tuning_clear() -> ()", &clear);
  m.def("_tuning_override(str name, int value) -> ()", &set_override);
  m.def("_tuning_choice(str family, str op, str format, int rows, int n, int k) -> int[]", &chosen);
  m.def("_tuning_parameters(str op) -> Dict(str, int[])", &parameters);
  m.def("_tuning_families() -> str[]", &families);
  m.def("_tuning_subnormals(str device) -> bool",
        [](const std::string& device) { return takes_subnormals(c10::Device(device)); });
  m.def("_tuning_tensors(str device) -> bool",
        [](const std::string& device) { return takes_tensors(c10::Device(device)); });
}

} // namespace foundry::tuning
