#include "attention.h"
#include "core/op.h"
#include "core/quant_table.h"
#include "core/tuning.h"
#include "ops/layout.h"

namespace foundry {
namespace {

using OptionalTensor = std::optional<at::Tensor>;

uint32_t u32(int64_t value) { return static_cast<uint32_t>(value); }

// What the mask's elements are: the template argument of the kernels, and a part of the variant index.
enum class MaskKind { none, keep, float_bias, same_bias };

MaskKind mask_kind(const OptionalTensor& mask, const at::Tensor& q) {
  if (!mask) return MaskKind::none;
  if (mask->scalar_type() == at::kBool) return MaskKind::keep;
  return mask->scalar_type() == q.scalar_type() ? MaskKind::same_bias : MaskKind::float_bias;
}

void check_mask(const at::Tensor& mask, const at::Tensor& q, int64_t kv_len) {
  check("mask", mask).device(q).dtype({at::kBool, at::kFloat, q.scalar_type()}).dim(4).last_dim_contiguous();
  for (int64_t d = 0; d < 3; d++) {
    TORCH_CHECK(mask.size(d) == q.size(d) || mask.size(d) == 1, "mask: expected [", q.size(0), " or 1, ", q.size(1),
                " or 1, ", q.size(2), " or 1, >=", kv_len, "], got ", mask.sizes());
  }
  TORCH_CHECK(mask.size(3) >= kv_len, "mask: expected at least kv_len=", kv_len, " columns, got ", mask.sizes());
}

struct Variant {
  at::ScalarType dtype;
  int64_t head_dim;
  int rows; // per threadgroup: 1, 2, 4, 8
  AttentionChoice choice;
  MaskKind mask;
  bool softcap, aligned;

  int index() const {
    const int log_rows = rows == 1 ? 0 : rows == 2 ? 1 : rows == 4 ? 2 : 3;
    const int layout = (log_rows * 2 + (choice.simdgroups > 4)) * 2 + (choice.lanes > 1);
    const int shape = (dtype_index(dtype) * 8 + static_cast<int>(head_dim / 32 - 1)) * 16 + layout;
    return ((shape * 4 + static_cast<int>(mask)) * 2 + softcap) * 2 + aligned;
  }
  static constexpr int count = 3 * 8 * 16 * 4 * 2 * 2;

  Kernel kernel(const char* function, bool decode) const {
    const char* type = metal_type(dtype);
    const char* element = mask == MaskKind::float_bias ? "float" : mask == MaskKind::same_bias ? type : "uchar";
    Kernel k{"attention.metal", function, {type, element, std::to_string(head_dim)}, {}, ""};
    if (decode) {
      for (int n : {rows, int(choice.simdgroups), int(choice.lanes)}) k.arguments.push_back(std::to_string(n));
    }
    k.constants = {
        {FC_ATTENTION_MASK, mask != MaskKind::none}, {FC_ATTENTION_SOFTCAP, softcap}, {FC_ATTENTION_ALIGNED, aligned}};
    return k;
  }
};

// What all three kernels are launched with.
struct Call {
  const at::Tensor &q, &k_cache, &v_cache;
  const OptionalTensor &mask, &kv_start, &step;
  at::Tensor y;
  AttentionArgs args;
  Variant variant;
  int64_t moved;

  int64_t rows() const { return int64_t(args.q_len) * args.group; } // that share a KV head
  int64_t heads() const { return q.size(0) * args.n_kv_heads; }

  void bind(Launch& launch) const {
    launch.in(q).in(k_cache).in(v_cache);
    mask ? launch.in(*mask) : launch.none();
    launch.in(kv_start ? *kv_start : q).in(step ? *step : q); // q stands in for buffers that are not read
    launch.out(y);
  }
};

void prefill(const Call& call) {
  static PipelineTable<Variant::count> table;
  Pipeline& pipeline =
      table.get(call.q.device(), call.variant.index(), [&] { return call.variant.kernel("attention_prefill", false); });
  Launch launch(pipeline);
  call.bind(launch);
  launch.args(call.args).moves(call.moved);
  launch.run(
      per_row(ceil_div(call.rows(), attention_prefill_rows), kSimdWidth * attention_prefill_simdgroups, call.heads()));
}

void decode(Call& call) {
  Variant& variant = call.variant;
  call.args.keys = variant.choice.keys;
  call.args.far_keys = variant.choice.far_keys;
  call.args.splits = attention_splits(call.args.kv_len, call.args.keys, call.args.far_keys);
  // Rows that read the keys together. Registers: rows * head_dim / 32 sums a lane. Threadgroup memory: 16 KiB for the
  // simdgroups' results. And a short cache would leave most of the GPU idle.
  const int64_t most = std::min(1024, 4096 / variant.choice.simdgroups) / variant.head_dim;
  const auto groups = [&](int rows) { return ceil_div(call.rows(), rows) * call.heads() * call.args.splits; };
  while (variant.rows < call.rows() && variant.rows < 8 && variant.rows * 2 <= most &&
         groups(variant.rows * 2) >= variant.choice.groups)
    variant.rows *= 2;
  const int64_t splits = call.args.splits, out_rows = call.y.numel() / variant.head_dim;

  at::Tensor partial_y = call.y, partials = call.y; // stand-ins: not touched when there is one split
  if (splits > 1) {
    const auto floats = call.q.options().dtype(at::kFloat);
    partial_y = at::empty({out_rows, splits, variant.head_dim}, floats);
    partials = at::empty({out_rows, splits, 2}, floats);
  }
  static PipelineTable<Variant::count> table;
  Pipeline& pipeline =
      table.get(call.q.device(), variant.index(), [&] { return variant.kernel("attention_decode", true); });
  Launch launch(pipeline);
  call.bind(launch);
  launch.out(partial_y).out(partials).args(call.args).moves(call.moved);
  const Grid grid = {{ceil_div(call.rows(), variant.rows), u32(splits), u32(call.heads())},
                     {kSimdWidth * variant.choice.simdgroups, 1, 1},
                     false};
  launch.run(grid);
  if (splits == 1) return;

  static PipelineTable<3 * 8> merge_table;
  const int index = dtype_index(variant.dtype) * 8 + static_cast<int>(variant.head_dim / 32 - 1);
  Pipeline& merge = merge_table.get(call.q.device(), index, [&] {
    return Kernel{
        "attention.metal", "attention_merge", {metal_type(variant.dtype), std::to_string(variant.head_dim)}, {}, ""};
  });
  Launch(merge)
      .in(partial_y)
      .in(partials)
      .in(call.step ? *call.step : call.q)
      .out(call.y)
      .args(call.args)
      .run(per_row(out_rows, kSimdWidth * attention_merge_simdgroups, variant.head_dim / 32));
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache, int64_t kv_len,
                     double scale, const OptionalTensor& mask, bool causal, int64_t window, double softcap,
                     const OptionalTensor& kv_start, const OptionalTensor& step) {
  Dim B("batch"), H("heads"), L("tokens"), D("head_dim"), K("kv_heads"), C("capacity"), VC("capacity");
  check("q", q).floating().shape({B, H, L, D}).last_dim_contiguous();
  check("k_cache", k_cache).like(q).shape({B, K, C, D}).last_dim_contiguous();
  check("v_cache", v_cache).like(q).shape({B, K, VC, D}).last_dim_contiguous();
  TORCH_CHECK(D.value() % 32 == 0 && D.value() >= 32 && D.value() <= 256,
              "q: expected a head_dim of 32 to 256 in steps of 32, got ", q.sizes());
  TORCH_CHECK(K.value() > 0 && H.value() % K.value() == 0, "q: expected a multiple of kv_heads=", K.value(),
              " heads, got ", q.sizes());
  TORCH_CHECK(kv_len >= 0 && kv_len <= std::min(C.value(), VC.value()), "kv_len: expected 0 to the capacity of ",
              std::min(C.value(), VC.value()), ", got ", kv_len);
  TORCH_CHECK(window >= 0, "window: expected 0 (none) or a positive number of keys, got ", window);
  TORCH_CHECK(softcap >= 0, "softcap: expected 0 (none) or a positive number, got ", softcap);
  if (mask) check_mask(*mask, q, kv_len);
  if (kv_start) check("kv_start", *kv_start).device(q).dtype({at::kInt}).shape({B}).contiguous();
  if (step) check("step", *step).device(q).dtype({at::kInt}).shape({2}).contiguous();
  at::Tensor y = at::empty({B, L, H.value() * D.value()}, q.options());
  if (y.numel() == 0) return y;
  if (kv_len == 0) return y.zero_();

  AttentionArgs args{};
  args.q_len = u32(L);
  args.kv_len = u32(kv_len);
  args.n_kv_heads = u32(K);
  args.group = u32(H.value() / K.value());
  args.splits = 1;
  args.causal = causal;
  args.window = u32(std::min<int64_t>(window, INT32_MAX));
  args.scale = static_cast<float>(scale);
  args.softcap = static_cast<float>(softcap);
  args.q_batch = u32(q.stride(0)), args.q_head = u32(q.stride(1)), args.q_token = u32(q.stride(2));
  args.k_batch = u32(k_cache.stride(0)), args.k_head = u32(k_cache.stride(1)), args.k_token = u32(k_cache.stride(2));
  args.v_batch = u32(v_cache.stride(0)), args.v_head = u32(v_cache.stride(1)), args.v_token = u32(v_cache.stride(2));
  if (mask) {
    args.mask_batch = stride_of(*mask, 0), args.mask_head = stride_of(*mask, 1), args.mask_token = stride_of(*mask, 2);
  }
  args.has_kv_start = kv_start.has_value();
  args.has_step = step.has_value();

  const bool aligned = aligned_rows(q) && aligned_rows(k_cache) && aligned_rows(v_cache);
  const int64_t moved = (2 * q.numel() + 2 * B.value() * K.value() * kv_len * D.value()) * q.itemsize();
  const int format = dense_format(q.scalar_type()).index;
  const AttentionChoice choice = attention_choice(q.device(), format, D);
  Call call{q,    k_cache,  v_cache,
            mask, kv_start, step,
            y,    args,     Variant{q.scalar_type(), D, 1, choice, mask_kind(mask, q), softcap > 0, aligned},
            moved};
  const int64_t partial =
      y.numel() * attention_splits(u32(kv_len), choice.keys, choice.far_keys); // elements of decode's partial results
  if (L.value() <= attention_decode_max_queries && partial <= INT32_MAX)
    decode(call);
  else
    prefill(call);
  return y;
}

} // namespace

FOUNDRY_OP("attention(Tensor q, Tensor k_cache, Tensor v_cache, SymInt kv_len, float scale, Tensor? mask=None, "
           "bool causal=True, SymInt window=0, float softcap=0.0, Tensor? kv_start=None, Tensor? step=None) -> Tensor",
           "attention", attention)

} // namespace foundry
