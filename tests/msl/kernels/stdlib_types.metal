// Scalars, vectors, matrices: conversions, swizzles, operators.
#include "check.h"

struct Packed {
  packed_float3 position;
  packed_half2 uv;
  char tag;
};
struct Aligned {
  float3 position;
  half3 normal;
  uchar4 color;
};

kernel void layouts(device atomic_uint* failed [[buffer(0)]]) {
  CHECK(sizeof(half) == 2 && sizeof(bfloat) == 2 && sizeof(long) == 8 && sizeof(bool) == 1 && sizeof(size_t) == 8);
  CHECK(sizeof(float3) == 16 && sizeof(half3) == 8 && sizeof(packed_float3) == 12 && sizeof(packed_half3) == 6);
  CHECK(alignof(float4) == 16 && alignof(half4) == 8 && alignof(packed_float4) == 4 && alignof(uchar2) == 2);
  CHECK(sizeof(Packed) == 20 && sizeof(Aligned) == 32);
  CHECK(sizeof(float4x4) == 64 && sizeof(float3x3) == 48 && sizeof(half2x4) == 16);
  CHECK(char(-1) < 0 && uchar(-1) == 255);
}

kernel void constructors(device atomic_uint* failed [[buffer(0)]]) {
  const float2 a = float2(1, 2);
  CHECK(all(float4(a, 3, 4) == float4(1, 2, 3, 4)) && all(float4(0, a, 5).yz == a) && all(float3(7) == 7));
  CHECK(all(float4(int4(1, -2, 3, -4)) == float4(1, -2, 3, -4)) && all(int2(float2(1.9, -1.9)) == int2(1, -1)));
  CHECK(all(half4(float4(0.1)) == half4(0.1h)) && all(float2(half2(0.5h, 2)) == float2(0.5, 2)));
  const uint4 braces = {1, 2, 3};
  CHECK(all(braces == uint4(1, 2, 3, 0)));
  packed_float3 p = float3(1, 2, 3);
  p[1] += 5;
  float3 q = p;
  CHECK(q.y == 7 && all(float3(p) * 2 == float3(2, 14, 6)) && p.z == 3);
  const float table[3] = {1, 2, 3};
  CHECK(vec<float, 3>(table[0], table[1], table[2]).b == 3);
  const metal::array<int, 3> values = {{4, 5, 6}};
  CHECK(values[2] == 6 && values.size() == 3);
}

kernel void swizzles(device atomic_uint* failed [[buffer(0)]]) {
  float4 v = float4(1, 2, 3, 4);
  CHECK(all(v.wzyx == float4(4, 3, 2, 1)) && all(v.xxyy == float4(1, 1, 2, 2)) && all(v.rgb == v.xyz) && v.a == 4);
  CHECK(all(v.zx == float2(3, 1)) && all(v.bgra == float4(3, 2, 1, 4)) && all(v.wwww == 4) && v.xyz[2] == 3);
  v.xy = v.yx;
  CHECK(all(v == float4(2, 1, 3, 4)));
  v.zyx = v.xyz;  // the same elements on both sides
  CHECK(all(v == float4(3, 1, 2, 4)));
  v.yw += 10;
  v.xz *= float2(2, 3);
  CHECK(all(v == float4(6, 11, 6, 14)));
  v.rg = 0;
  v.w = v.z;
  CHECK(all(v == float4(0, 0, 6, 6)));
  float4 other = 1;
  other.yz = v.zw;
  CHECK(all(other == float4(1, 6, 6, 1)) && all((v.xz + other.xz) * 2 == float2(2, 24)));
  int i = 2;
  v[i] = 9;
  CHECK(v.z == 9 && v[3] == 6);
  CHECK(dot(v.xyz, float3(1, 1, 1)) == 9 && all(max(v.zw, 7) == float2(9, 7)));
  half3 h = half3(1, 2, 3);
  h.zx = half2(8, 9);
  CHECK(all(h == half3(9, 2, 8)));
  const bool3 mask = v.xyz > 1;
  CHECK(!mask.x && mask.z && any(mask.yz));
}

kernel void operators(device atomic_uint* failed [[buffer(0)]]) {
  const int4 a = int4(7, -7, 100, 3);
  CHECK(all(a / 2 == int4(3, -3, 50, 1)) && all(a % 4 == int4(3, -3, 0, 3)) && all(-a == int4(-7, 7, -100, -3)));
  CHECK(all((a & 3) == int4(3, 1, 0, 3)) && all((a << 1) == a * 2) && all(~a == -1 - a) && all((a ^ a) == 0));
  const uchar4 bytes = uchar4(200, 100, 0, 255);
  CHECK(all(bytes + bytes == uchar4(144, 200, 0, 254)) && all(bytes >> 4 == uchar4(12, 6, 0, 15)));
  float3 f = 1;
  f += float3(1, 2, 3);
  f -= 1;
  f /= 2;
  CHECK(all(f == float3(0.5, 1, 1.5)) && all(2 / f == float3(4, 2, 2 / 1.5)) && !any(f == 3.0));
  CHECK(all((f > 0.75) == bool3(false, true, true)) && all(!(f > 0.75) == bool3(true, false, false)));
  CHECK(all((bool2(true, false) || bool2(false, false)) == bool2(true, false)));
  CHECK(all(select(float2(1, 2), float2(3, 4), bool2(false, true)) == float2(1, 4)) && select(1, 2, true) == 2);
  CHECK(as_type<uint>(1.0f) == 0x3f800000 && as_type<half2>(0x3c00bc00u).y == 1.0h && as_type<float>(0x40000000) == 2);
  CHECK(as_type<uint2>(half4(1, 0, 0, 2)).y == 0x40000000 && as_type<short>(half(-0.0h)) == -32768);
  CHECK(as_type<uint>(uchar4(1, 2, 3, 4).wzyx) == 0x01020304);
}

kernel void half_type(device atomic_uint* failed [[buffer(0)]]) {
  const half a = 0.1, b = 3;
  CHECK(as_type<ushort>(a) == 0x2e66 && as_type<ushort>(half(65519.0f)) == 0x7bff && isinf(half(65520.0f)));
  CHECK(as_type<ushort>(half(0x1p-24f)) == 1 && half(0x1p-26f) == 0 && as_type<ushort>(half(0x1.8p-24f)) == 2);
  CHECK(half(2049.0f) == 2048 && half(2051.0f) == 2052);  // ties to even
  CHECK(is_same_v<decltype(a * b), half> && is_same_v<decltype(a * 1.0f), float> && is_same_v<decltype(a * 2), half>);
  CHECK((a + b) * b == half(half(a + b) * b) && a * b != float(a) * float(b));
  CHECK(numeric_limits<half>::max() == 65504 && numeric_limits<half>::epsilon() == 0x1p-10f);
  CHECK(!(half(NAN) == half(NAN)) && isnan(half(NAN)) && -INFINITY < numeric_limits<half>::lowest());
  half c = b;
  c += 0.5h;
  c++;
  CHECK(c == 4.5h && int(c) == 4 && bool(c) && !half(0));
}

kernel void bfloat_type(device atomic_uint* failed [[buffer(0)]]) {
  const bfloat a = 1.00390625bf, b = 3.0f;  // halfway between two values
  CHECK(as_type<ushort>(a) == 0x3f80 && as_type<ushort>(bfloat(1.01171875f)) == 0x3f82 && float(b) == 3);
  CHECK(isnan(bfloat(NAN)) && isinf(bfloat(INFINITY)) && isinf(bfloat(3.4e38f)) && bfloat(1e-40f) > 0);
  float f = b;
  int i = int(b);
  uint u = b;
  bool t = b;
  ushort s = b;
  CHECK(f == 3 && i == 3 && u == 3 && t && s == 3 && (t ? b : 0) == 3 && (t ? 1 : b) == 1);
  bfloat c = 7, d = true, e = 2u;
  c = i;
  c += 1;
  c *= b;
  f *= b;
  i += b;
  CHECK(c == 12 && d == 1 && e == 2 && f == 9 && i == 6 && c / 8 == 1.5 && 1 - e == -1 && -c == -12);
  CHECK(is_same_v<decltype(a * b), bfloat> && is_same_v<decltype(a * 1.0f), float> && is_same_v<decltype(a * 2), bfloat>);
  CHECK(bfloat(256) + bfloat(1) == bfloat(256) && bfloat(256) + 1.0f == 257);
  CHECK(half(b) == 3 && bfloat(half(2.5h)) == 2.5f && b > 2 && 2 < b && b == 3u && b != a && (b && !bfloat(0)));
  CHECK(max(a, b) == b && exp(bfloat(0)) == 1 && fma(b, b, a) == 10 && numeric_limits<bfloat>::epsilon() == 0x1p-7f);
  const bfloat4 v = bfloat4(float4(1, 2, 3, 4.00390625)) * b;
  CHECK(all(float4(v) == float4(3, 6, 9, 12)) && dot(v, bfloat4(1)) == 30);
}

kernel void matrices(device atomic_uint* failed [[buffer(0)]]) {
  const float2x3 m = float2x3(float3(1, 2, 3), float3(4, 5, 6));  // two columns
  CHECK(all(m * float2(1, 10) == float3(41, 52, 63)) && all(float3(1, 1, 1) * m == float2(6, 15)) && m[1].y == 5);
  CHECK(all(transpose(m)[2] == float2(3, 6)) && (m * float2x2(2) == m * 2.0f) && (m - m == float2x3(0)));
  const float3x3 r = float3x3(2, 0, 1, 0, 3, 0, 1, 0, 4);
  CHECK(determinant(r) == 21 && determinant(float2x2(1, 2, 3, 4)) == -2 && determinant(float4x4(2)) == 16);
  float4x4 n = float4x4(1);
  n[3] = float4(1, 2, 3, 1);
  CHECK(all((n * n)[3] == float4(2, 4, 6, 1)) && all((n * float4(0, 0, 0, 1)).xyz == float3(1, 2, 3)));
  CHECK(half3x3(r)[2][2] == 4 && all((half2x2(1) * half2(3, 4)) == half2(3, 4)));
}
