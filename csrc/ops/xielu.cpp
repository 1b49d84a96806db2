#include "core/op.h"
#include "linear/xielu.h"
#include "ops/layout.h"

namespace foundry {
namespace {

at::Tensor xielu(const at::Tensor& x, const at::Tensor& alpha_p, const at::Tensor& alpha_n, const at::Tensor& beta,
                 const at::Tensor& eps) {
  check("x", x).floating().contiguous();
  const std::pair<const char*, const at::Tensor&> settings[] = {
      {"alpha_p", alpha_p}, {"alpha_n", alpha_n}, {"beta", beta}, {"eps", eps}};
  for (const auto& [name, setting] : settings) {
    check(name, setting).like(x);
    TORCH_CHECK(setting.numel() == 1, name, ": expected a single number, got ", setting.sizes());
  }
  at::Tensor y = at::empty_like(x);
  if (x.numel() == 0) return y;

  const int vector = x.numel() % 8 == 0 && reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0 ? 8 : 1;
  XieluArgs args{u32(x.numel() / vector)};
  Launch launch(x.device(), {"xielu.metal", "xielu", {x.scalar_type(), vector}});
  launch.in(x).in(alpha_p).in(alpha_n).in(beta).in(eps).out(y).args(args).run(per_element(args.vectors));
  return y;
}

} // namespace

FOUNDRY_OP("xielu(Tensor x, Tensor alpha_p, Tensor alpha_n, Tensor beta, Tensor eps) -> Tensor", "xielu", xielu)

} // namespace foundry
