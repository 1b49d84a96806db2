// Heads of a new token that attention_decode makes first: their norms and rotation, and the rows of the cache.
// Each threadgroup makes the queries that it has, and the key and value if they are of its split, which it then reads.
// Threadgroups that share those write the same bytes.
#pragma once
#include "attention/attention_scores.h"
#include "attention/kv_pack.h"
#include "attention/new_heads.h"

constant bool has_new [[function_constant(FC_ATTENTION_NEW)]];

// In place of a type: queries come as they are, and keys and values are in the cache.
struct NotNew {};

// What a kernel is given tables and caches as: types that no compiler deduces from arguments.
template <typename Table> struct TableOf {
  using type = Table;
};
template <typename Store, typename Table> struct CacheUnit {
  using type = typename Store::unit;
};
template <typename Store> struct CacheUnit<Store, NotNew> {
  using type = const typename Store::unit;
};

// Where a query goes that is made: as scaled floats in the order in which the scores S read them.
template <typename S> struct ScaledQueries {
  threadgroup float* tile;
  int columns;
  float scale;

  struct Row {
    threadgroup float* row;
    METAL_FUNC threadgroup float& operator[](uint column) const thread {
      return row[S::q_index(int(column / 4)) * 4 + int(column % 4)];
    }
  };
  template <int EACH, bool FULL>
  METAL_FUNC void put(constant RopeKvArgs& heads, int r, thread Head<EACH, FULL>& h, uint lane) const thread {
#pragma unroll
    for (int e = 0; e < EACH; ++e) h.x[e] *= scale;
    h.template write<float>(heads, Row{tile + r * columns}, lane);
  }
};

// Table: of cos and sin. Kind: of the norms. KOut, VOut: how keys and values are written (kv_pack.h).
template <typename T, typename Table, typename Kind, typename KOut, typename VOut> struct MadeHeads {
  FOUNDRY_CONST bool any = true;
  NewHeads<T, Table, Kind> from;

  // Floats that a simdgroup makes heads in, of threadgroup memory of which it uses so many otherwise.
  static constexpr int floats(int key_columns, int value_columns, int otherwise) {
    const int made = 32 * int(head_elements(key_columns > value_columns ? key_columns : value_columns));
    return made > otherwise ? made : otherwise;
  }

  // Makes the queries that a threadgroup of SIMDS simdgroups has, at most ROWS of D columns, and, if its split has it,
  // the new key and value; there are none if keys are another layer's or if a sequence has no token. row: floats of
  // this simdgroup.
  template <int ROWS, int SIMDS, int D, int DV, typename KStore, typename VStore, typename Queries>
  METAL_FUNC void make(constant AttentionArgs& args, DecodeTile work, KvExtent keys, KeyRange split,
                       thread const KvRows<KStore>& k_rows, thread const KvRows<VStore>& v_rows, Queries queries,
                       threadgroup float* row, uint lane, uint simdgroup) const thread {
    constexpr int EACH = int(head_elements(D > DV ? D : DV));
    const int key = keys.first, used = min(ROWS, work.n_rows - work.first_row);
    const bool writes = args.heads.n_kv_heads && key >= max(split.begin, 0) && key < min(split.end, keys.length);
    const int count = writes ? used + 2 : used; // key and value come last
    Head<EACH, D == 32 * EACH && DV == D> h, next{work.batch, 0, 0, {}};
#pragma unroll 1
    for (int n = int(simdgroup) - SIMDS; n < count; n += SIMDS) { // the next one is read while one is made
      h = next;
      const int then = n + SIMDS;
      if (then < count) {
        const uint kv = args.heads.n_heads + work.kv_head + (then > used ? args.heads.n_kv_heads : 0);
        next.head = then < used ? work.head(args, then) : kv;
        from.read(args.heads, next, lane);
      }
      if (n < 0) continue;
      from.make(args.heads, has_head_norm, h, row, lane);
      if (n < used) {
        queries.put(args.heads, n, h, lane);
        continue;
      }
      h.template write<float>(args.heads, row, lane);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      if (n == used)
        KOut::store((device typename KOut::unit*)k_rows.row(key, paged), row, D, lane);
      else
        VOut::store((device typename VOut::unit*)v_rows.row(key, paged), row, DV, lane);
      simdgroup_barrier(mem_flags::mem_threadgroup); // before another head comes to the same floats
    }
  }
};

template <typename T> struct MadeHeads<T, NotNew, NotNew, NotNew, NotNew> {
  FOUNDRY_CONST bool any = false;
  NewHeads<T, NotNew, NotNew> from;
  static constexpr int floats(int, int, int otherwise) { return otherwise; }
  template <int, int, int, int, typename KStore, typename VStore, typename Queries>
  METAL_FUNC void make(constant AttentionArgs&, DecodeTile, KvExtent, KeyRange, thread const KvRows<KStore>&,
                       thread const KvRows<VStore>&, Queries, threadgroup float*, uint, uint) const thread {}
};
