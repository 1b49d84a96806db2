// Self-test of a program that holds runtime and kernels (runtime.metal) in one, for processors and compilers whose
// libraries Python cannot load. Appended to both.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace {

void launch(const char* name, std::initializer_list<void*> buffers, uint32_t groups, uint32_t size, uint32_t memory = 0) {
  const msl_module* module = msl_get_module();
  for (uint32_t i = 0; i < module->nkernels; i++) {
    if (std::strcmp(module->kernels[i].name, name) != 0) continue;
    msl_launch request{};
    request.kernel = &module->kernels[i];
    request.buffers = buffers.begin();
    request.nbuffers = static_cast<uint32_t>(buffers.size());
    for (int axis = 0; axis < 3; axis++) request.grid[axis] = request.group[axis] = 1;
    request.grid[0] = groups;
    request.group[0] = size;
    request.threadgroup_bytes = &memory;
    request.nthreadgroup = memory != 0;
    char error[1024];
    if (msl_rt_launch(&request, error, sizeof error) == 0) return;
    std::printf("%s\n", error);
    std::exit(1);
  }
  std::printf("no kernel %s\n", name);
  std::exit(1);
}

void expect(bool holds, const char* what) {
  if (holds) return;
  std::printf("failed: %s\n", what);
  std::exit(1);
}

void test_order(int order) {
  msl_rt_configure(order, 3, 2, 1);
  const uint32_t n = 96, groups = 20;
  std::vector<float> x(n * groups), y(n * groups);
  for (uint32_t i = 0; i < x.size(); i++) x[i] = static_cast<float>(i);
  launch("reverse", {x.data(), y.data()}, groups, n, n * 4);
  for (uint32_t i = 0; i < x.size(); i++) expect(y[i] == x[i / n * n + n - 1 - i % n], "reverse");

  std::vector<uint32_t> rounds(n * groups);
  launch("rounds", {rounds.data()}, groups, n);
  for (uint32_t i = 0; i < rounds.size(); i++) expect(rounds[i] == (i + 8) % n + 28, "rounds");

  std::vector<uint32_t> sums(32);
  launch("divergent_sums", {sums.data()}, 1, 32);
  const uint32_t in_loop[] = {32, 56, 72, 80};
  for (uint32_t lane = 0; lane < 32; lane++)
    expect(sums[lane] == in_loop[lane % 4] + (lane < 8 ? 700 : 8000) + 32000000, "divergent_sums");
}

} // namespace

int main() {
  for (int order = 0; order < 3; order++) test_order(order);
  std::printf("3 orders passed\n");
}
