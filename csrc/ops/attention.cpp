#include "attention/attention.h"

#include <cmath>

#include "core/op.h"
#include "core/quant_table.h"
#include "core/tuning.h"
#include "attention/kv_store.h"
#include "ops/heads.h"
#include "ops/kv.h"
#include "ops/layout.h"
#include "ops/limits.h"

namespace foundry {
namespace {

// What the mask's elements are: a template argument of the kernels.
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

// Whether attention_decode_matrix.metal has a kernel for these: keys and values of q's own 16 bits, or packed.
bool can_multiply_matrices(const at::Tensor& q, const KvStore& keys, const KvStore& values) {
  const auto fits = [&](const KvStore& store) { // a lane's parts of wider rows would not fit into registers
    return store.columns % 32 == 0 && store.columns <= 256 && (store.packed() || store.format.dtype == q.scalar_type());
  };
  return q.scalar_type() != at::kFloat && fits(keys) && fits(values);
}

// What decode's kernels are chosen by; without products of matrices where there are none.
AttentionChoice choose(const at::Tensor& q, const KvStore& keys, const KvStore& values, bool value_queries) {
  AttentionChoice choice = attention_choice(q.device(), dense_format(q.scalar_type()).index, keys.columns);
  if (choice.lanes == simd_width && (value_queries || !can_multiply_matrices(q, keys, values))) choice.lanes = 8;
  return choice;
}

void check_columns(const char* name, int64_t columns, const at::Tensor& tensor) {
  TORCH_CHECK(columns % kHeadDimStep == 0 && columns >= kLeastHeadDim && columns <= kMostHeadDim, name,
              ": expected a head_dim of ", kLeastHeadDim, " to ", kMostHeadDim, " in steps of ", kHeadDimStep, ", got ",
              tensor.sizes());
}

// The tensors of a call, as the kernels bind them.
struct Inputs {
  const at::Tensor &q, &k_cache, &v_cache;
  const OptionalTensor &mask, &sinks, &kv_start, &step, &rows, &table, &value_queries;

  void bind(Launch& launch, bool writes_caches = false) const { // q stands in for what is not read
    launch.in(q);
    for (const at::Tensor* cache : {&k_cache, &v_cache}) writes_caches ? launch.inout(*cache) : launch.in(*cache);
    launch.in(mask).in(sinks);
    launch.in_or(kv_start, q).in_or(step, q).in_or(rows, q).in_or(table, q);
  }
};

// A checked call.
struct Call : Inputs {
  KvStore keys, values;
  AttentionArgs args{};
  at::Tensor y;
  AttentionChoice choice;
  bool aligned, wide_sinks;
  int64_t min_bytes;

  Call(const Inputs& inputs, OptionalName k_format, OptionalName v_format, int64_t kv_len)
      : Inputs(inputs), keys(kv_store("k_cache", k_cache, k_format)), values(kv_store("v_cache", v_cache, v_format)) {
    Dim B("batch"), H("heads"), L("tokens"), D("head_dim");
    check("q", q).floating().shape({B, H, L, D}).last_dim_contiguous();
    check_pages("k_cache", k_cache).device(q);
    check_pages("v_cache", v_cache).device(q);
    const int64_t K = k_cache.size(1), page = k_cache.size(2);
    check_columns("q", D, q);
    check_columns("v_cache", values.columns, v_cache);
    TORCH_CHECK(keys.columns == D, "k_cache: expected head_dim=", D.value(), ", got ", k_cache.sizes());
    TORCH_CHECK(K > 0 && H.value() % K == 0, "q: expected a multiple of kv_heads=", K, " heads, got ", q.sizes());
    int64_t capacity = std::min(page, v_cache.size(2));
    if (table) {
      args.page_shift = u32(check_table(*table, q, B, page));
      args.table_row = u32(table->stride(0));
      check_pages("v_cache", v_cache).shape({k_cache.size(0), K, page, v_cache.size(3)});
      capacity = table->size(1) * page;
    } else {
      check("k_cache", k_cache).shape({B, K, page, k_cache.size(3)});
      check("v_cache", v_cache).shape({B, K, v_cache.size(2), v_cache.size(3)});
    }
    TORCH_CHECK(kv_len >= 0 && kv_len <= capacity, "kv_len: expected 0 to the capacity of ", capacity, ", got ",
                kv_len);
    if (mask) check_mask(*mask, q, kv_len);
    if (kv_start) check("kv_start", *kv_start).device(q).dtype({at::kInt}).shape({B}).contiguous();
    if (step) check("step", *step).device(q).dtype({at::kInt}).shape({2}).contiguous();
    if (rows) check("rows", *rows).device(q).dtype({at::kInt}).shape({B, 2}).contiguous();
    TORCH_CHECK(!rows || !step, "rows: expected step or rows, got both");
    if (sinks) check("sinks", *sinks).device(q).dtype({at::kFloat, q.scalar_type()}).shape({H}).contiguous();
    y = at::empty({B, L, H.value() * values.columns}, q.options());
    if (value_queries) {
      check("value_queries", *value_queries).like(q).shape({B, H, L, values.columns}).last_dim_contiguous();
      args.u_batch = u32(value_queries->stride(0)), args.u_head = u32(value_queries->stride(1));
      args.u_token = u32(value_queries->stride(2));
    }
    args.q_len = u32(L);
    args.kv_len = u32(kv_len);
    args.n_kv_heads = u32(K);
    args.group = u32(H.value() / K);
    args.splits = 1;
    args.two_1024 = kv_two_1024;
    args.has_kv_start = kv_start.has_value();
    args.has_step = step.has_value();
    args.has_rows = rows.has_value();
    set_strides();
    if (y.numel() == 0 || kv_len == 0) return; // nothing to launch

    const bool k_aligned = kv_aligned("k_cache", k_cache, keys), v_aligned = kv_aligned("v_cache", v_cache, values);
    aligned = aligned_rows(q) && k_aligned && v_aligned && (!value_queries || aligned_rows(*value_queries));
    wide_sinks = sinks && sinks->scalar_type() == at::kFloat;
    const int64_t row_bytes = k_cache.size(3) * k_cache.itemsize() + v_cache.size(3) * v_cache.itemsize();
    min_bytes = q.nbytes() + y.nbytes() + B.value() * K * kv_len * row_bytes;
    choice = choose(q, keys, values, value_queries.has_value());
    const bool prompt = value_queries && L.value() > attention_decode_max_queries; // it has work for all: few splits
    args.keys = prompt ? attention_near / 2 : choice.keys;
    args.far_keys = prompt ? 1u << 30 : choice.far_keys;
  }

  int64_t grouped_rows() const { return int64_t(args.q_len) * args.group; } // that share a KV head
  int64_t heads() const { return q.size(0) * args.n_kv_heads; }

  KernelKey kernel(const char* file, const char* function) const {
    const MaskKind kind = mask_kind(mask, q);
    const KernelArgument type = q.scalar_type();
    const KernelArgument element = kind == MaskKind::float_bias  ? "float"
                                   : kind == MaskKind::same_bias ? type
                                                                 : "uchar";
    return {file,
            function,
            {type, element, keys.reader(), values.reader(), int(keys.columns), int(values.columns)},
            {{FC_ATTENTION_MASK, mask.has_value()},
             {FC_ATTENTION_SOFTCAP, args.softcap > 0},
             {FC_ATTENTION_ALIGNED, aligned},
             {FC_ATTENTION_SINKS, sinks.has_value()},
             {FC_ATTENTION_WIDE_SINKS, wide_sinks},
             {FC_ATTENTION_PAGED, table.has_value()}}};
  }

private:
  void set_strides() {
    args.q_batch = u32(q.stride(0)), args.q_head = u32(q.stride(1)), args.q_token = u32(q.stride(2));
    args.k_batch = u32(k_cache.stride(0)), args.k_head = u32(k_cache.stride(1)), args.k_token = u32(k_cache.stride(2));
    args.v_batch = u32(v_cache.stride(0)), args.v_head = u32(v_cache.stride(1)), args.v_token = u32(v_cache.stride(2));
    if (!mask) return;
    args.mask_batch = stride_of(*mask, 0), args.mask_head = stride_of(*mask, 1), args.mask_token = stride_of(*mask, 2);
  }
};

void prefill(const Call& call) {
  Launch launch(call.q.device(), call.kernel("attention_prefill.metal", "attention_prefill"));
  call.bind(launch);
  launch.out(call.y).args(call.args).min_bytes(call.min_bytes);
  const uint32_t rows = attention_prefill_rows(u32(std::max(call.keys.columns, call.values.columns)));
  launch.run(per_row(ceil_div(call.grouped_rows(), rows), simd_width * attention_prefill_simdgroups, call.heads()));
}

// Query rows of a threadgroup, which read the keys together: those of a group, unless that would leave most of the GPU
// idle. Registers: rows * columns / 32 sums a lane, 32 of them, or 64 for a group's sake where there is room for so
// many. Threadgroup memory: queries and weights, or heads that are made.
int rows_together(const Call& call, bool makes_heads) {
  const AttentionChoice& choice = call.choice;
  const int64_t columns = call.keys.columns, widest = std::max<int64_t>(columns, call.values.columns);
  if (choice.lanes == simd_width) return call.args.group > 8 && widest <= 128 ? 16 : 8;
  const auto fits = [&](int rows) {
    const bool of_one_group = rows / 2 < static_cast<int>(call.args.group);
    const int64_t queries = columns + (call.value_queries ? call.values.columns : 0);
    const int64_t own = std::max<int64_t>(rows * 2 * simd_width, makes_heads ? simd_width * head_elements(widest) : 0);
    const int64_t floats = rows * queries + choice.simdgroups * own;
    const int most = of_one_group ? choice.rows : std::min<int>(choice.rows, 8);
    const int64_t columns_of_all = std::min<int64_t>(256 * choice.rows, of_one_group ? 2048 : 1024);
    return rows <= most && rows * widest <= columns_of_all && floats <= 7168;
  };
  const auto groups = [&](int rows) { return ceil_div(call.grouped_rows(), rows) * call.heads() * call.args.splits; };
  int rows = 1;
  while (rows < call.grouped_rows() && fits(rows * 2) && groups(rows * 2) >= choice.groups) rows *= 2;
  return rows;
}

// Heads of a new token, which a decode kernel makes before it attends (attention_heads.h).
struct MadeHeads {
  const NewHeads& heads;
  const HeadsTo& to;

  void bind(Launch& launch) const {
    launch.in(heads.new_k()).in(heads.new_v()).in(to.cos).in(to.sin).in_or(to.positions, heads.q);
    launch.in(heads.q_norm).in(heads.k_norm);
  }
};

KernelKey decode_kernel(const Call& call, int rows, const MadeHeads* made) {
  const int simdgroups = call.choice.simdgroups, lanes = call.choice.lanes;
  if (lanes == simd_width)
    return call.kernel("attention_decode_matrix.metal", "attention_decode_matrix").add({rows / 8, simdgroups});
  KernelKey key = call.kernel("attention_decode.metal", "attention_decode").add({rows, simdgroups, lanes});
  if (call.value_queries || made) key.add({call.value_queries ? int(call.values.columns) : 0});
  if (made) {
    const char* table = metal_type(made->to.table_type(call.q.scalar_type()));
    key.add({table, made->heads.kind(), call.keys.format.writer, call.values.format.writer});
  }
  return key.set({{FC_ATTENTION_NEW, made != nullptr},
                  {FC_ROPE_ROTATE, made && made->to.cos},
                  {FC_ROPE_NORM, made && made->heads.norm},
                  {FC_ROPE_NORM_V, made && made->heads.norm_values},
                  {FC_ROPE_NORM_ROWS, made && made->heads.norm_rows},
                  {FC_ROPE_NORM_LATE, made && made->heads.norm_late}});
}

void decode(Call& call, const MadeHeads* made = nullptr) {
  const int64_t columns = call.values.columns;
  call.args.splits = attention_splits(call.args.kv_len, call.args.keys, call.args.far_keys);
  const int64_t splits = call.args.splits, out_rows = call.y.numel() / columns, rows = rows_together(call, made);

  at::Tensor partial_y = call.y, partials = call.y; // stand-ins: not touched when there is one split
  if (splits > 1) {
    const auto floats = call.q.options().dtype(at::kFloat);
    partial_y = at::empty({out_rows, splits, columns}, floats);
    partials = at::empty({out_rows, splits, 2}, floats);
  }
  Launch launch(call.q.device(), decode_kernel(call, rows, made));
  call.bind(launch, made);
  launch.out(call.y).out(partial_y).out(partials).args(call.args).min_bytes(call.min_bytes);
  if (call.choice.lanes != simd_width) launch.in_or(call.value_queries, call.q);
  if (made) made->bind(launch);
  const uint32_t threads = simd_width * call.choice.simdgroups;
  launch.run(per_row(ceil_div(call.grouped_rows(), rows), threads, call.heads(), splits));
  if (splits == 1) return;

  const bool few = splits <= attention_merge_simdgroups;
  Launch merge(call.q.device(),
               {"attention_decode.metal",
                few ? "attention_merge_few" : "attention_merge",
                {call.q.scalar_type(), int(columns)},
                {{FC_ATTENTION_SINKS, call.sinks.has_value()}, {FC_ATTENTION_WIDE_SINKS, call.wide_sinks}}});
  merge.in(partial_y).in(partials).in(call.sinks).in_or(call.step, call.q).in_or(call.rows, call.q);
  merge.out(call.y).args(call.args);
  const uint32_t parts = ceil_div(columns, 32); // of a row, 32 columns each
  merge.run(few ? per_row(out_rows, simd_width * parts)
                : per_row(out_rows, simd_width * attention_merge_simdgroups, parts));
}

// What scores pass through, and the keys that are seen.
void set_scores(Call& call, double scale, bool causal, int64_t window, double softcap) {
  TORCH_CHECK(window >= 0, "window: expected 0 (none) or a positive number of keys, got ", window);
  TORCH_CHECK(std::isfinite(softcap) && softcap >= 0, "softcap: expected 0 (none) or a positive number, got ", softcap);
  call.args.scale = finite("scale", scale);
  call.args.softcap = static_cast<float>(softcap);
  call.args.causal = causal;
  call.args.window = u32(std::min<int64_t>(window, INT32_MAX));
}

// Whether the elements of decode's partial results can be counted.
bool fits(const Call& call) {
  return call.y.numel() * attention_splits(call.args.kv_len, call.args.keys, call.args.far_keys) <= INT32_MAX;
}

at::Tensor attend(Call& call) {
  if (call.y.numel() == 0) return call.y;
  if (call.args.kv_len == 0) return call.y.zero_();
  TORCH_CHECK(!call.value_queries || fits(call), "value_queries: ", call.q.sizes(), " of ", call.args.kv_len,
              " keys are too many at a time");
  if (call.value_queries || (call.q.size(2) <= attention_decode_max_queries && fits(call)))
    decode(call);
  else
    prefill(call);
  return call.y;
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k_cache, const at::Tensor& v_cache, int64_t kv_len,
                     double scale, const OptionalTensor& mask, bool causal, int64_t window, double softcap,
                     const OptionalTensor& kv_start, const OptionalTensor& step, const OptionalTensor& rows,
                     const OptionalTensor& block_table, const OptionalTensor& sinks, OptionalName k_format,
                     OptionalName v_format, const OptionalTensor& value_queries) {
  Call call({q, k_cache, v_cache, mask, sinks, kv_start, step, rows, block_table, value_queries}, k_format, v_format,
            kv_len);
  set_scores(call, scale, causal, window, softcap);
  return attend(call);
}

at::Tensor rope_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const OptionalTensor& cos,
                          const OptionalTensor& sin, const at::Tensor& k_cache, const at::Tensor& v_cache,
                          int64_t kv_len, int64_t head_dim, double scale, const OptionalTensor& positions,
                          const OptionalTensor& step, const OptionalTensor& q_norm, const OptionalTensor& k_norm,
                          double eps, std::string_view kind, const OptionalTensor& rows,
                          const OptionalTensor& block_table, OptionalName k_format, OptionalName v_format, bool v_norm,
                          bool interleaved, bool rotate_first, bool gated, const OptionalTensor& mask, bool causal,
                          int64_t window, double softcap, const OptionalTensor& sinks) {
  check("q", q).dim(3);
  const int64_t tokens = q.size(1);
  TORCH_CHECK(kv_len >= tokens, "kv_len: expected at least the ", tokens, " new tokens, got ", kv_len);
  const HeadsTo to{cos,  sin,  positions,   k_cache,  v_cache,  kv_len - tokens,
                   step, rows, block_table, k_format, v_format, interleaved};
  const NewHeads heads(q, k, v, to, {head_dim, q_norm, k_norm, eps, kind, v_norm, rotate_first, gated});
  const KvStore keys = kv_store("k_cache", k_cache, k_format), values = kv_store("v_cache", v_cache, v_format);
  // A group's queries lie in one threadgroup of attention by matrices, which would make them one after the other.
  const bool together = tokens == 1 && std::max(keys.columns, values.columns) <= attention_made_columns &&
                        choose(q, keys, values, false).lanes != simd_width;
  const at::Tensor queries = together ? q.as_strided({q.size(0), heads.args.n_heads, 1, head_dim},
                                                     {q.stride(0), heads.args.q_head, q.stride(1), 1})
                                      : heads.empty_queries();
  const OptionalTensor none;
  Call call({queries, k_cache, v_cache, mask, sinks, none, step, rows, block_table, none}, k_format, v_format, kv_len);
  set_scores(call, scale, causal, window, softcap);
  if (!together) { // which writes to the caches: behind all checks
    rope_and_write(heads, to, queries);
    return attend(call);
  }
  if (call.y.numel() == 0) return call.y;
  TORCH_CHECK(fits(call), "kv_len: ", kv_len, " keys for queries of ", q.sizes(), " are too many at a time");
  call.args.heads = heads.args;
  const MadeHeads made{heads, to};
  decode(call, &made);
  return call.y;
}

} // namespace

FOUNDRY_OP("attention(Tensor q, Tensor k_cache, Tensor v_cache, SymInt kv_len, float scale, Tensor? mask=None, "
           "bool causal=True, SymInt window=0, float softcap=0.0, Tensor? kv_start=None, Tensor? step=None, "
           "Tensor? rows=None, Tensor? block_table=None, Tensor? sinks=None, str? k_format=None, "
           "str? v_format=None, Tensor? value_queries=None) -> Tensor",
           "attention", attention)

FOUNDRY_OP("rope_attention(Tensor q, Tensor k, Tensor v, Tensor? cos, Tensor? sin, Tensor(a!) k_cache, "
           "Tensor(b!) v_cache, SymInt kv_len, SymInt head_dim, float scale, Tensor? positions=None, "
           "Tensor? step=None, Tensor? q_norm=None, Tensor? k_norm=None, float eps=0.0, str kind=\"llama\", "
           "Tensor? rows=None, Tensor? block_table=None, str? k_format=None, str? v_format=None, "
           "bool v_norm=False, bool interleaved=False, bool rotate_first=False, bool gated=False, "
           "Tensor? mask=None, bool causal=True, SymInt window=0, float softcap=0.0, Tensor? sinks=None) -> Tensor",
           "rope_attention", rope_attention)

} // namespace foundry
