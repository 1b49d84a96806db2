// The language features that Metal compute code uses, one small kernel each: everything here compiles and runs.
#include "scale.h"
#include <metal_simdgroup_matrix>
#include <metal_atomic>
using namespace metal;

constant bool has_bias [[function_constant(FC_SCALE + 0)]];
constant int unroll [[function_constant(FC_SCALE + 1)]];
constant float2 corner [[function_constant(12)]];
constant int steps = is_function_constant_defined(unroll) ? unroll : 4;
constant bool doubled = has_bias && steps > 2;
constant float table[4] = {1.0, 2., .5, 1e-1};
constexpr constant uint2 shape = uint2(4, 2);

// overloads that differ in the address space only
METAL_FUNC float first(device const float* p) { return p[0]; }
METAL_FUNC float first(threadgroup const float* q) { return q[0]; }
METAL_FUNC float first(constant float* r) { return r[0]; }
template <typename T> METAL_FUNC T second(device T* p) { return p[1]; }
template <typename U> METAL_FUNC U second(threadgroup U* p) { return p[1]; }

struct Complex {
  float re, im;
  constexpr Complex(float r, float i) thread : re(r), im(i) {}
  constexpr Complex(float r, float i) threadgroup : re(r), im(i) {}
  constexpr Complex(float r, float i) constant : re(r), im(i) {}
  float norm() const thread { return re * re + im * im; }
  float norm() const device { return re * re + im * im; }
  float norm() const constant { return re * re + im * im; }
  template <typename T> T get(T v) const thread { return v + T(re); }
  template <> int get(int v) const thread { return v + int(re) + 1; }
};

template <typename T> struct Pointee { using type = T; };
template <typename T> struct Pointee<device T*> { using type = T; };
template <typename T> struct Pointee<threadgroup T*> { using type = T; };
template <typename T> struct Pointee<const constant T*> { using type = T; };

template <typename T, enable_if_t<sizeof(T) < 4, bool> = true> METAL_FUNC T narrow(T v) { return v; }
template <typename T, enable_if_t<(sizeof(T) > 2), bool> = true> METAL_FUNC half narrow(T v) { return half(v); }

// spelling 1: decltype
template <typename T>
[[kernel, max_total_threads_per_threadgroup(256)]] void scale(
    device const T* x [[buffer(BufferIndexInput)]],
    device const T* bias [[buffer(1), function_constant(has_bias)]],
    device T* y [[buffer(BufferIndexOutput)]],
    constant ScaleArgs& args [[buffer(BufferIndexArgs)]],
    uint i [[thread_position_in_grid]]) {
  if (int(i) < args.n)
    y[i] = T(float(x[i]) * args.factor + (has_bias ? float(bias[i]) : 0.0));
}
template [[host_name("scale_f32")]] [[kernel]] decltype(scale<float>) scale<float>;
template [[host_name("scale_" "f16")]] [[kernel]] decltype(scale<half>) scale<half>;

// spelling 2: a typedef; threadgroup variables in a template, several declarators, arrays of arrays
template <typename T, int N>
kernel void transpose(device const T* x, device T* y, constant int& n, uint2 id [[thread_position_in_threadgroup]]) {
  threadgroup T tile[N][N + 1], row[N];
  threadgroup float total;
  if (id.x == 0 && id.y == 0)
    total = 0;
  tile[id.y][id.x] = x[id.y * N + id.x];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (id.y == 0)
    row[id.x] = tile[id.x][0];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[id.y * N + id.x] = tile[id.x][id.y] + row[0] * T(0) + T(total) * T(n);
}
typedef decltype(transpose<float, 8>) transpose_t;
template [[host_name("transpose_f32_8")]] kernel transpose_t transpose<float, 8>;

// spelling 3: the whole signature, once with template arguments and once with deduced ones
template <typename T>
kernel void add(device const T* a [[buffer(0)]], device T* b [[buffer(1)]], uint i [[thread_position_in_grid]]) {
  b[i] += a[i];
}
template [[host_name("add_i32")]] kernel void add<int>(
    device const int* a [[buffer(0)]], device int* b [[buffer(1)]], uint i [[thread_position_in_grid]]);
template [[host_name("add_u8")]] kernel void add(
    device const uchar* a [[buffer(0)]], device uchar* b [[buffer(1)]], uint i [[thread_position_in_grid]]);

namespace inner {
struct Twice {
  static int apply(int v) { return 2 * v; }
};
template <typename Op> kernel void map(device int* x, uint i [[thread_position_in_grid]]) { x[i] = Op::apply(x[i]); }
template [[host_name("map_twice")]] kernel decltype(map<Twice>) map<Twice>;
kernel void clear(device int* x, uint i [[thread_position_in_grid]]) { x[i] = 0; }
}

[[host_name("ids")]] [[kernel]] void all_ids(
    device uint* out [[buffer(0)]],
    threadgroup uint* scratch [[threadgroup(0)]],
    uint a [[thread_position_in_grid]], uint b [[thread_position_in_threadgroup]],
    uint c [[thread_index_in_threadgroup]], uint d [[thread_index_in_simdgroup]],
    uint e [[threadgroup_position_in_grid]], uint f [[threads_per_grid]], uint g [[threads_per_threadgroup]],
    uint h [[threadgroups_per_grid]], ushort i [[simdgroup_index_in_threadgroup]],
    ushort j [[simdgroups_per_threadgroup]], ushort k [[threads_per_simdgroup]]) {
  scratch[c] = b + d + i;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (c == 0)
    out[e] = scratch[0] + f + g + h + j + k + a;
}

kernel void literals(device float* y, device half* h, device bfloat* b) {
  y[0] = 1.0 + 2. + .5 + 1e3 + 0x1p3 + 1.0f + float(0x1E) + table[3] + float(shape.x);
  h[0] = 1.5h + 2h + MAXHALF * 0.0h;
  b[0] = 1.5bf;
  y[1] = M_PI_F + (doubled ? FLT_MAX : corner.x);
  y[2] = narrow(1.5h) + float(narrow(2.5f));
}

kernel void ranges(device float* y, uint tid [[thread_index_in_threadgroup]]) {
  float acc[4] = {[0 ... 3] = 0.5};
  simdgroup_float8x8 m[2] = {[0 ... 1] = make_filled_simdgroup_matrix<float, 8>(0.f)};
  int part[4] = {[0 ... 1] = 1, [2 ... 3] = 2};
  const thread auto& e = m[0].thread_elements();
  static constant constexpr float weights[2] = {0.25, 0.75};
  _Pragma("clang loop unroll(full)") for (int i = 0; i < 4; ++i) acc[0] += acc[i] * float(part[i]) * weights[i % 2];
  y[tid] = acc[0] + e[0];
}

kernel void spaces(device float* y, constant float* c, device atomic_uint* counter, device const Complex* z) {
  threadgroup float local[2];
  local[0] = c[0];
  y[0] = first(y) + first(local) + first(c) + second(y) + second(local);
  Complex w(1.0, 2.0);
  y[1] = w.norm() + z[0].norm() + w.get(1.0f) + float(w.get(1));
  atomic_fetch_add_explicit(counter, 1u, memory_order_relaxed);
  typename Pointee<device float*>::type t = 1;
  y[2] = t;
}

// a literal beside a 16-bit float
template <typename T> kernel void choose(device T* x, device const T* y, uint i [[thread_position_in_grid]]) {
  T a = i > 2 ? y[i] : 0;
  float b = i > 3 ? x[i] : -0.1;
  device const T* p = i > 3 ? y : 0;
  x[i] = a + T(b) + p[0] + T(i > 0 ? (i > 1 ? y[1] : 0) : 1) + (i > 4 ? 2 : i > 3 ? y[0] : 1);
}
template [[host_name("choose_bf16")]] kernel decltype(choose<bfloat>) choose<bfloat>;
template [[host_name("choose_f16")]] kernel decltype(choose<half>) choose<half>;
template [[host_name("choose_f32")]] kernel decltype(choose<float>) choose<float>;
