#include "mixers/short_conv.h"

#include "core/op.h"
#include "ops/slots.h"

namespace foundry {
namespace {

at::Tensor short_conv(const at::Tensor& bcx, const at::Tensor& weight, const OptionalTensor& bias,
                      const at::Tensor& states, const at::Tensor& runs, const at::Tensor& table,
                      const at::Tensor& count) {
  Dim T("tokens"), C("channels"), W("width"), S("states");
  check("weight", weight).floating().shape({C, W}).contiguous();
  Dim P("3 * channels", 3 * C);
  check("bcx", bcx).like(weight).shape({T, P}).last_dim_contiguous();
  if (bias) check("bias", *bias).like(bcx).shape({C}).contiguous();
  check_pages("states", states).like(bcx).shape({S, C, W}).contiguous().disjoint("bcx", bcx);
  check_slots(runs, table, count, bcx);
  TORCH_CHECK(W > 0 && W <= int64_t(short_conv_max_width), "weight: expected a width of 1 to ", short_conv_max_width,
              ", got ", weight.sizes());
  at::Tensor y = at::empty({T, C}, bcx.options());
  const int64_t sequences = runs.size(0);
  if (y.numel() == 0 || sequences == 0) return y;

  ShortConvArgs args{};
  args.channels = u32(C), args.stride = u32(bcx.stride(0)), args.slots = u32(table.size(1));
  args.runs_stride = u32(runs.stride(0)), args.table_stride = u32(table.stride(0));
  args.count_stride = u32(count.stride(0));
  const KernelKey key("short_conv.metal", "short_conv", {bcx.scalar_type(), int(W)},
                      {{FC_SHORT_CONV_BIAS, bias.has_value()}});
  Launch launch(bcx.device(), key);
  launch.in(bcx).in(weight).in(bias).inout(states).in(runs).in(table).in(count).out(y).args(args);
  launch.min_bytes(sequences * 2 * C * W * states.itemsize() + bcx.nbytes() + y.nbytes());
  const int64_t parts = std::min<int64_t>(ceil_div(T, short_conv_tokens), 1024);
  launch.run(per_row(ceil_div(C, short_conv_threads), short_conv_threads, sequences, parts));
  return y;
}

} // namespace

FOUNDRY_OP("short_conv(Tensor bcx, Tensor weight, Tensor? bias, Tensor(a!) states, Tensor runs, Tensor table, "
           "Tensor count) -> Tensor",
           "short_conv", short_conv)

} // namespace foundry
