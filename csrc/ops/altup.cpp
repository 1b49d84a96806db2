// Residual streams of Gemma 3n: shaders/norm/altup.metal.
#include "norm/altup.h"

#include "core/op.h"
#include "ops/options.h"

namespace foundry {
namespace {

Grid grid(int64_t tokens, int64_t hidden) {
  const uint32_t simdgroups = ceil_div(hidden, altup_per_thread * simd_width);
  return per_row(tokens, simd_width * std::min(simdgroups, altup_max_threads / simd_width));
}

// Streams x[streams, tokens, hidden], and the router's weights, whose coefficients have `rows` rows.
struct Streams {
  Dim N{"streams"}, T{"tokens"}, H{"hidden"};
  AltupArgs args{};

  explicit Streams(const at::Tensor& x) {
    check("x", x).floating().shape({N, T, H}).contiguous();
    const int64_t most = altup_max_streams;
    TORCH_CHECK(x.size(0) > 1 && x.size(0) <= most, "x: expected 2 to ", most, " streams, got ", x.sizes());
    args.tokens = u32(x.size(1)), args.hidden = u32(x.size(2)), args.streams = u32(x.size(0));
  }

  void route(const at::Tensor& x, const at::Tensor& norm, const at::Tensor& router, const at::Tensor& coefs,
             int64_t rows, double eps, double scale, int64_t active) {
    check("norm", norm).like(x).shape({H}).contiguous();
    check("router", router).like(x).shape({N, H}).contiguous();
    check("coefs", coefs).like(x).shape({rows, N}).contiguous();
    TORCH_CHECK(active >= 0 && active < N.value(), "active: expected one of ", N.value(), " streams, got ", active);
    args.active = u32(active), args.eps = epsilon(eps), args.scale = finite("scale", scale);
  }
};

at::Tensor altup_predict(const at::Tensor& x, const at::Tensor& norm, const at::Tensor& router, const at::Tensor& coefs,
                         double eps, double scale, int64_t active) {
  Streams streams(x);
  streams.route(x, norm, router, coefs, x.size(0) * x.size(0), eps, scale, active);
  at::Tensor y = at::empty_like(x);
  if (x.numel() == 0) return y;
  Launch launch(x.device(), {"altup.metal", "altup_predict", {x.scalar_type(), int(x.size(0))}});
  launch.in(x).in(norm).in(router).in(coefs).out(y).args(streams.args).run(grid(x.size(1), x.size(2)));
  return y;
}

std::tuple<at::Tensor, at::Tensor> altup_correct(const at::Tensor& x, const at::Tensor& activated,
                                                 const at::Tensor& norm, const at::Tensor& router,
                                                 const at::Tensor& coefs, double eps, double scale, int64_t active,
                                                 const OptionalTensor& own_scale) {
  Streams streams(x);
  streams.route(x, norm, router, coefs, x.size(0), eps, scale, active);
  check("activated", activated).like(x).shape({streams.T, streams.H}).contiguous();
  if (own_scale) check("own_scale", *own_scale).like(x).shape({streams.H}).contiguous();
  at::Tensor y = at::empty_like(x), own = at::empty_like(activated);
  if (x.numel() == 0) return {y, own};
  Launch launch(
      x.device(),
      {"altup.metal", "altup_correct", {x.scalar_type(), int(x.size(0))}, {{FC_ALTUP_SCALE, own_scale.has_value()}}});
  launch.in(x).in(activated).in(norm).in(router).in(coefs).in(own_scale).out(y).out(own);
  launch.args(streams.args).run(grid(x.size(1), x.size(2)));
  return {y, own};
}

at::Tensor altup_add(const at::Tensor& x, const at::Tensor& added, const at::Tensor& norm, double eps) {
  Streams streams(x);
  check("added", added).like(x).shape({streams.T, streams.H}).contiguous();
  check("norm", norm).like(x).shape({streams.H}).contiguous();
  streams.args.eps = epsilon(eps);
  at::Tensor y = at::empty_like(x);
  if (x.numel() == 0) return y;
  Launch launch(x.device(), {"altup.metal", "altup_add", {x.scalar_type()}});
  launch.in(x).in(added).in(norm).out(y).args(streams.args).run(grid(x.size(1), x.size(2)));
  return y;
}

void match(const at::Tensor& x, const at::Tensor& like, const OptionalTensor& onto, const at::Tensor& y, float least,
           float scale) {
  const AltupMatchArgs args{u32(x.size(-1)), least, scale};
  Launch launch(x.device(), {"altup.metal", "altup_match", {x.scalar_type()}, {{FC_ALTUP_ONTO, onto.has_value()}}});
  launch.in(x).in(like).in(onto).out(y).args(args).run(grid(x.numel() / x.size(-1), x.size(-1)));
}

void check_rows(const at::Tensor& x, at::TensorList others) {
  Dim T("tokens"), H("hidden");
  check("x", x).floating().shape({T, H}).contiguous();
  for (const at::Tensor& other : others) check("others", other).like(x).shape({T, H}).contiguous();
  const int64_t most = altup_max_streams, count = static_cast<int64_t>(others.size()) + 1;
  TORCH_CHECK(count > 1 && count <= most, "others: expected 1 to ", most - 1, " tensors, got ", count - 1);
}

at::Tensor altup_expand(const at::Tensor& x, at::TensorList others, double least) {
  check_rows(x, others);
  const float bound = epsilon(least);
  at::Tensor y = at::empty({static_cast<int64_t>(others.size()) + 1, x.size(0), x.size(1)}, x.options());
  if (x.numel() == 0) return y;
  for (size_t i = 0; i < others.size(); i++) match(others[i], x, {}, y.select(0, int64_t(i) + 1), bound, 1.0f);
  Launch launch(x.device(), {"altup.metal", "altup_copy", {x.scalar_type()}});
  launch.in(x).out(y.select(0, 0)).args(u32(x.numel())).run(per_element(x.numel()));
  return y;
}

at::Tensor altup_collapse(const at::Tensor& x, at::TensorList others, double least) {
  check_rows(x, others);
  const float bound = epsilon(least);
  at::Tensor sum = x;
  if (x.numel() == 0) return at::empty_like(x);
  for (size_t i = 0; i < others.size(); i++) {
    const at::Tensor y = at::empty_like(x);
    const bool last = i + 1 == others.size();
    match(others[i], x, sum, y, bound, last ? 1.0f / float(others.size() + 1) : 1.0f);
    sum = y;
  }
  return sum;
}

} // namespace

FOUNDRY_OP("altup_predict(Tensor x, Tensor norm, Tensor router, Tensor coefs, float eps, float scale, "
           "int active=0) -> Tensor",
           "altup_predict", altup_predict)
FOUNDRY_OP("altup_correct(Tensor x, Tensor activated, Tensor norm, Tensor router, Tensor coefs, float eps, "
           "float scale, int active=0, Tensor? own_scale=None) -> (Tensor, Tensor)",
           "altup_correct", altup_correct)
FOUNDRY_OP("altup_add(Tensor x, Tensor added, Tensor norm, float eps) -> Tensor", "altup_add", altup_add)
FOUNDRY_OP("altup_expand(Tensor x, Tensor[] others, float least) -> Tensor", "altup_expand", altup_expand)
FOUNDRY_OP("altup_collapse(Tensor x, Tensor[] others, float least) -> Tensor", "altup_collapse", altup_collapse)

} // namespace foundry
