#include "attention.h"

#include <cmath>

#include "core/op.h"
#include "core/quant_table.h"
#include "core/tuning.h"
#include "kv_store.h"
#include "ops/kv.h"
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

// Whether attention_matrix.metal has a kernel for these: keys and values of q's own 16 bits, or packed.
bool can_multiply_matrices(const at::Tensor& q, const KvStore& keys, const KvStore& values) {
  const auto fits = [&](const KvStore& store) {
    return store.columns % 32 == 0 && (store.packed() || store.kind == dtype_index(q.scalar_type()));
  };
  return q.scalar_type() != at::kFloat && fits(keys) && fits(values);
}

struct Variant {
  at::ScalarType dtype;
  KvStore keys, values;
  int rows; // per threadgroup: 1, 2, 4, 8, 16
  AttentionChoice choice;
  MaskKind mask;
  bool softcap, aligned, sinks, wide_sinks, paged;

  uint64_t index() const {
    uint64_t n = static_cast<uint64_t>(dtype_index(dtype));
    const auto add = [&](uint64_t value, uint64_t count) { n = n * count + value; };
    add(keys.kind, KvStore::kinds), add(values.kind, KvStore::kinds);
    add(keys.columns / 16, 64), add(values.columns / 16, 64);
    add(rows, 32), add(choice.simdgroups, 64), add(choice.lanes, 64);
    add(static_cast<uint64_t>(mask), 4);
    for (bool flag : {softcap, aligned, sinks, wide_sinks, paged}) add(flag, 2);
    return n;
  }

  Kernel kernel(bool decode) const {
    const char* type = metal_type(dtype);
    const char* element = mask == MaskKind::float_bias ? "float" : mask == MaskKind::same_bias ? type : "uchar";
    const bool matrices = decode && choice.lanes == kSimdWidth;
    Kernel k{
        matrices ? "attention_matrix.metal"
        : decode ? "attention.metal"
                 : "attention_prefill.metal",
        matrices ? "attention_decode_matrix"
        : decode ? "attention_decode"
                 : "attention_prefill",
        {type, element, keys.policy(), values.policy(), std::to_string(keys.columns), std::to_string(values.columns)},
        {},
        ""};
    if (decode) {
      k.arguments.push_back(std::to_string(matrices ? rows / 8 : rows));
      k.arguments.push_back(std::to_string(choice.simdgroups));
      if (!matrices) k.arguments.push_back(std::to_string(choice.lanes));
    }
    k.constants = {{FC_ATTENTION_MASK, mask != MaskKind::none},
                   {FC_ATTENTION_SOFTCAP, softcap},
                   {FC_ATTENTION_ALIGNED, aligned},
                   {FC_ATTENTION_SINKS, sinks},
                   {FC_ATTENTION_WIDE_SINKS, wide_sinks},
                   {FC_ATTENTION_PAGED, paged}};
    return k;
  }

  uint64_t merge_index() const {
    return ((uint64_t(dtype_index(dtype)) * 64 + values.columns / 16) * 2 + sinks) * 2 + wide_sinks;
  }
  Kernel merge_kernel() const {
    return {"attention.metal",
            "attention_merge",
            {metal_type(dtype), std::to_string(values.columns)},
            {{FC_ATTENTION_SINKS, sinks}, {FC_ATTENTION_WIDE_SINKS, wide_sinks}},
            ""};
  }
};

// What all three kernels are launched with.
struct Call {
  const at::Tensor &q, &k_cache, &v_cache;
  const OptionalTensor &mask, &kv_start, &step, &rows, &table, &sinks;
  at::Tensor y;
  AttentionArgs args;
  Variant variant;
  int64_t moved;

  int64_t grouped_rows() const { return int64_t(args.q_len) * args.group; } // that share a KV head
  int64_t heads() const { return q.size(0) * args.n_kv_heads; }
  const at::Tensor& given(const OptionalTensor& x) const { return x ? *x : q; } // q stands in for what is not read

  void bind(Launch& launch) const {
    launch.in(q).in(k_cache).in(v_cache);
    mask ? launch.in(*mask) : launch.none();
    sinks ? launch.in(*sinks) : launch.none();
    launch.in(given(kv_start)).in(given(step)).in(given(rows)).in(given(table)).out(y);
  }
};

void prefill(const Call& call) {
  static PipelineMap table;
  Pipeline& pipeline = table.get(call.q.device(), call.variant.index(), [&] { return call.variant.kernel(false); });
  Launch launch(pipeline);
  call.bind(launch);
  launch.args(call.args).moves(call.moved);
  launch.run(per_row(ceil_div(call.grouped_rows(), attention_prefill_rows), kSimdWidth * attention_prefill_simdgroups,
                     call.heads()));
}

// Query rows of a threadgroup, which read the keys together: those of a group, unless that would leave most of the GPU
// idle. Registers: rows * columns / 32 sums a lane, 32 of them, or 64 for a group's sake. Threadgroup memory: queries
// and weights.
int rows_together(const Call& call) {
  const AttentionChoice& choice = call.variant.choice;
  const int64_t columns = call.variant.keys.columns, widest = std::max<int64_t>(columns, call.variant.values.columns);
  if (choice.lanes == kSimdWidth) return call.args.group > 8 && widest <= 128 ? 16 : 8;
  const auto fits = [&](int rows) {
    const bool of_one_group = rows / 2 < static_cast<int>(call.args.group);
    const int64_t floats = rows * (columns + choice.simdgroups * 2 * kSimdWidth);
    return rows <= (of_one_group ? 16 : 8) && rows * widest <= (of_one_group ? 2048 : 1024) && floats <= 7168;
  };
  const auto groups = [&](int rows) { return ceil_div(call.grouped_rows(), rows) * call.heads() * call.args.splits; };
  int rows = 1;
  while (rows < call.grouped_rows() && fits(rows * 2) && groups(rows * 2) >= choice.groups) rows *= 2;
  return rows;
}

void decode(Call& call) {
  Variant& variant = call.variant;
  const int64_t columns = variant.values.columns;
  call.args.keys = variant.choice.keys;
  call.args.far_keys = variant.choice.far_keys;
  call.args.splits = attention_splits(call.args.kv_len, call.args.keys, call.args.far_keys);
  variant.rows = rows_together(call);
  const int64_t splits = call.args.splits, out_rows = call.y.numel() / columns;

  at::Tensor partial_y = call.y, partials = call.y; // stand-ins: not touched when there is one split
  if (splits > 1) {
    const auto floats = call.q.options().dtype(at::kFloat);
    partial_y = at::empty({out_rows, splits, columns}, floats);
    partials = at::empty({out_rows, splits, 2}, floats);
  }
  static PipelineMap table;
  Pipeline& pipeline = table.get(call.q.device(), variant.index(), [&] { return variant.kernel(true); });
  Launch launch(pipeline);
  call.bind(launch);
  launch.out(partial_y).out(partials).args(call.args).moves(call.moved);
  const Grid grid = {{ceil_div(call.grouped_rows(), variant.rows), u32(call.heads()), u32(splits)},
                     {kSimdWidth * variant.choice.simdgroups, 1, 1},
                     false};
  launch.run(grid);
  if (splits == 1) return;

  static PipelineMap merge_table;
  Pipeline& merge = merge_table.get(call.q.device(), variant.merge_index(), [&] { return variant.merge_kernel(); });
  Launch joined(merge);
  joined.in(partial_y).in(partials);
  call.sinks ? joined.in(*call.sinks) : joined.none();
  joined.in(call.given(call.step)).in(call.given(call.rows)).out(call.y).args(call.args);
  joined.run(per_row(out_rows, kSimdWidth * attention_merge_simdgroups, ceil_div(columns, 32)));
}

void check_columns(const char* name, int64_t columns, const at::Tensor& tensor) {
  TORCH_CHECK(columns % 16 == 0 && columns >= 32 && columns <= 256, name,
              ": expected a head_dim of 32 to 256 in steps of 16, got ", tensor.sizes());
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache, int64_t kv_len,
                     double scale, const OptionalTensor& mask, bool causal, int64_t window, double softcap,
                     const OptionalTensor& kv_start, const OptionalTensor& step, const OptionalTensor& rows,
                     const OptionalTensor& block_table, const OptionalTensor& sinks,
                     std::optional<std::string_view> k_format, std::optional<std::string_view> v_format) {
  Dim B("batch"), H("heads"), L("tokens"), D("head_dim");
  check("q", q).floating().shape({B, H, L, D}).last_dim_contiguous();
  check_pages("k_cache", k_cache).device(q);
  check_pages("v_cache", v_cache).device(q);
  const KvStore keys = kv_store("k_cache", k_cache, k_format), values = kv_store("v_cache", v_cache, v_format);
  const int64_t K = k_cache.size(1), page = k_cache.size(2), sequences = k_cache.size(0);
  check_columns("q", D, q);
  check_columns("v_cache", values.columns, v_cache);
  TORCH_CHECK(keys.columns == D, "k_cache: expected head_dim=", D.value(), ", got ", k_cache.sizes());
  TORCH_CHECK(K > 0 && H.value() % K == 0, "q: expected a multiple of kv_heads=", K, " heads, got ", q.sizes());
  int64_t capacity = std::min(page, v_cache.size(2));
  int page_shift = 0;
  if (block_table) {
    page_shift = check_table(*block_table, q, B, page);
    check_pages("v_cache", v_cache).shape({sequences, K, page, v_cache.size(3)});
    capacity = block_table->size(1) * page;
  } else {
    check("k_cache", k_cache).shape({B, K, page, k_cache.size(3)});
    check("v_cache", v_cache).shape({B, K, v_cache.size(2), v_cache.size(3)});
  }
  TORCH_CHECK(kv_len >= 0 && kv_len <= capacity, "kv_len: expected 0 to the capacity of ", capacity, ", got ", kv_len);
  TORCH_CHECK(window >= 0, "window: expected 0 (none) or a positive number of keys, got ", window);
  TORCH_CHECK(std::isfinite(softcap) && softcap >= 0, "softcap: expected 0 (none) or a positive number, got ", softcap);
  TORCH_CHECK(std::isfinite(scale), "scale: expected a finite number, got ", scale);
  if (mask) check_mask(*mask, q, kv_len);
  if (kv_start) check("kv_start", *kv_start).device(q).dtype({at::kInt}).shape({B}).contiguous();
  if (step) check("step", *step).device(q).dtype({at::kInt}).shape({2}).contiguous();
  if (rows) check("rows", *rows).device(q).dtype({at::kInt}).shape({B, 2}).contiguous();
  TORCH_CHECK(!rows || !step, "rows: expected step or rows, got both");
  if (sinks) check("sinks", *sinks).device(q).dtype({at::kFloat, q.scalar_type()}).shape({H}).contiguous();
  at::Tensor y = at::empty({B, L, H.value() * values.columns}, q.options());
  if (y.numel() == 0) return y;
  if (kv_len == 0) return y.zero_();

  AttentionArgs args{};
  args.q_len = u32(L);
  args.kv_len = u32(kv_len);
  args.n_kv_heads = u32(K);
  args.group = u32(H.value() / K);
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
  args.has_rows = rows.has_value();
  args.table_row = block_table ? u32(block_table->stride(0)) : 0;
  args.page_shift = u32(page_shift);
  args.two_1024 = kv_two_1024;

  const bool k_aligned = kv_aligned("k_cache", k_cache, keys), v_aligned = kv_aligned("v_cache", v_cache, values);
  const bool aligned = aligned_rows(q) && k_aligned && v_aligned;
  const int64_t row_bytes = k_cache.size(3) * k_cache.itemsize() + v_cache.size(3) * v_cache.itemsize();
  const int64_t moved = q.nbytes() + y.nbytes() + B.value() * K * kv_len * row_bytes;
  AttentionChoice choice = attention_choice(q.device(), dense_format(q.scalar_type()).index, D);
  if (choice.lanes == kSimdWidth && !can_multiply_matrices(q, keys, values)) choice.lanes = 8;
  const bool wide_sinks = sinks && sinks->scalar_type() == at::kFloat;
  const Variant variant{q.scalar_type(),
                        keys,
                        values,
                        1,
                        choice,
                        mask_kind(mask, q),
                        softcap > 0,
                        aligned,
                        sinks.has_value(),
                        wide_sinks,
                        block_table.has_value()};
  Call call{q, k_cache, v_cache, mask, kv_start, step, rows, block_table, sinks, y, args, variant, moved};
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
           "bool causal=True, SymInt window=0, float softcap=0.0, Tensor? kv_start=None, Tensor? step=None, "
           "Tensor? rows=None, Tensor? block_table=None, Tensor? sinks=None, str? k_format=None, "
           "str? v_format=None) -> Tensor",
           "attention", attention)

} // namespace foundry
