// Functions whose results are exact; the others are compared with numpy.
#include "check.h"

kernel void common(device atomic_uint* failed [[buffer(0)]]) {
  CHECK(clamp(5.0f, 1.0f, 3.0f) == 3 && saturate(-1.0f) == 0 && mix(2.0f, 4.0f, 0.25f) == 2.5 && step(1.0f, 1.0f) == 1);
  CHECK(sign(-0.5f) == -1 && sign(0.0f) == 0 && smoothstep(0.0f, 2.0f, 1.0f) == 0.5 && fract(-0.25f) == 0.75);
  CHECK(fmin(NAN, 1.0f) == 1 && fmax(1.0f, NAN) == 1 && min(2.0f, -1.0f) == -1 && max3(1.0f, 9.0f, 4.0f) == 9);
  CHECK(median3(3, 1, 2) == 2 && min3(3.0h, 1.0h, 2.0h) == 1 && fmedian3(1.0f, 5.0f, 3.0f) == 3);
  CHECK(all(clamp(float3(-1, 0.5, 9), 0.0f, 1.0f) == float3(0, 0.5, 1)) && all(max(int2(1, 5), 3) == int2(3, 5)));
  CHECK(rint(2.5f) == 2 && round(2.5f) == 3 && trunc(-2.5f) == -2 && floor(-2.5f) == -3 && ceil(-2.5f) == -2);
  CHECK(copysign(3.0f, -1.0f) == -3 && fdim(5.0f, 3.0f) == 2 && fmod(-7.0f, 4.0f) == -3 && ldexp(1.5f, 4) == 24);
  int exponent;
  CHECK(frexp(24.0f, exponent) == 0.75 && exponent == 5 && ilogb(24.0f) == 4);
  float whole;
  CHECK(modf(-3.25f, whole) == -0.25 && whole == -3);
  CHECK(nextafter(1.0f, 2.0f) == 1.00000012f && nextafter(1.0h, 0.0h) == 0.99951171875h && nextafter(0.0h, 1.0h) > 0);
  CHECK(isnan(NAN) && !isfinite(INFINITY) && isnormal(1.0f) && !isnormal(1e-40f) && signbit(-0.0f));
  CHECK(isunordered(NAN, 1.0f) && isordered(1.0f, 2.0f) && all(isinf(float2(INFINITY, 1)) == bool2(true, false)));
  CHECK(sinpi(1.0f) == 0 && cospi(1.0f) == -1 && cospi(1e6f + 0.5f) == 0 && exp10(2.0f) == 100);
  CHECK(precise::exp(0.0f) == 1 && fast::sqrt(4.0f) == 2 && precise::divide(1.0f, 4.0f) == 0.25 && rsqrt(16.0f) == 0.25);
  CHECK(is_same_v<decltype(precise::exp(1.0h)), float> && is_same_v<decltype(fast::fabs(bfloat(-2))), float>);
  CHECK(is_same_v<decltype(exp(bfloat(1))), float> && log(bfloat(3)) == log(3.0f) && is_same_v<decltype(sqrt(2.0h)), half>);
  CHECK(precise::sqrt(2.0h) == sqrt(2.0f) && sqrt(2.0h) != sqrt(2.0f) && is_same_v<decltype(precise::pow(2, 3.0h)), float>);
  CHECK(fma(2.0h, 3.0h, 4.0h) == 10 && all(fma(float2(1, 2), 3.0f, 1.0f) == float2(4, 7)) && powr(2.0f, 3.0f) == 8);
  CHECK(abs(-3) == 3 && abs(-3.5f) == 3.5 && all(abs(short2(-1, 2)) == short2(1, 2)) && fabs(-2.0h) == 2);
}

kernel void integers(device atomic_uint* failed [[buffer(0)]]) {
  CHECK(popcount(0xf0fu) == 8 && popcount(char(-1)) == 8 && clz(1) == 31 && clz(ushort(1)) == 15 && ctz(8u) == 3);
  CHECK(clz(0u) == 32 && ctz(uchar(0)) == 8 && ctz(1ul << 40) == 40 && reverse_bits(uchar(1)) == 128);
  CHECK(rotate(0x80000001u, 1u) == 3 && rotate(uchar(0x81), uchar(4)) == 0x18 && rotate(5, 0) == 5);
  CHECK(extract_bits(0xabcdu, 4, 8) == 0xbc && extract_bits(-1, 3, 4) == -1 && extract_bits(7u, 0, 0) == 0);
  CHECK(insert_bits(0xffffu, 0u, 4, 8) == 0xf00f && insert_bits(0, 3, 30, 2) == int(0xc0000000));
  CHECK(mulhi(0x80000000u, 4u) == 2 && mulhi(-1, 1) == -1 && mulhi(~0ul, ~0ul) == ~0ul - 1 && madhi(-1, 1, 5) == 4);
  CHECK(addsat(uchar(250), uchar(10)) == 255 && addsat(char(-100), char(-100)) == -128 && subsat(3u, 5u) == 0);
  CHECK(subsat(INT_MIN, 1) == INT_MIN && subsat(INT_MAX, -1) == INT_MAX && madsat(100000, 100000, 0) == INT_MAX);
  CHECK(hadd(INT_MAX, INT_MAX - 2) == INT_MAX - 1 && rhadd(3u, 4u) == 4 && hadd(-3, -4) == -4);
  CHECK(absdiff(-2, 3) == 5 && absdiff(INT_MIN, INT_MAX) == UINT_MAX && mad24(3, 4, 5) == 17 && mul24(7u, 6u) == 42);
  CHECK(all(popcount(uint2(1, 7)) == uint2(1, 3)) && all(absdiff(int2(1, 5), int2(4, 2)) == 3));
  CHECK(all(extract_bits(uint2(0x12, 0x34), 4, 4) == uint2(1, 3)) && abs(INT_MIN) == INT_MIN);
}

kernel void geometry(device atomic_uint* failed [[buffer(0)]]) {
  const float3 x = float3(1, 0, 0), y = float3(0, 1, 0), v = float3(2, 3, 6);
  CHECK(dot(v, v) == 49 && length(v) == 7 && length_squared(v) == 49 && all(cross(x, y) == float3(0, 0, 1)));
  CHECK(distance(v, v + 2 * x) == 2 && distance_squared(x, y) == 2 && all(normalize(2 * y) == y));
  CHECK(all(reflect(float3(1, -1, 0), y) == float3(1, 1, 0)) && all(refract(-y, y, 1.0f) == -y));
  CHECK(all(faceforward(y, -y, y) == y) && all(faceforward(y, y, y) == -y) && dot(half2(1, 2), half2(3, 4)) == 11);
}

kernel void packing(device atomic_uint* failed [[buffer(0)]]) {
  CHECK(pack_float_to_unorm4x8(float4(0, 1, 0.5, 2)) == 0xff80ff00 && pack_float_to_snorm2x16(float2(-1, 1)) == 0x7fff8001);
  CHECK(all(unpack_unorm4x8_to_float(0xff0000ff) == float4(1, 0, 0, 1)) && unpack_snorm4x8_to_float(0x81).x == -1);
  CHECK(unpack_unorm2x16_to_half(0x0000ffff).x == 1);
}

kernel void limits_and_traits(device atomic_uint* failed [[buffer(0)]]) {
  CHECK(numeric_limits<float>::max() == FLT_MAX && numeric_limits<int>::min() == INT_MIN);
  CHECK(numeric_limits<uint>::max() == UINT_MAX && numeric_limits<ushort>::digits == 16);
  CHECK(is_floating_point_v<half> && is_floating_point<bfloat>::value && !is_floating_point_v<int>);
  CHECK(is_same_v<make_scalar_t<float4>, float> && is_same_v<make_scalar_t<int>, int> && is_integral_v<ulong>);
  CHECK(is_same_v<conditional_t<is_signed_v<int>, half, float>, half> && is_same_v<make_unsigned_t<int>, uint>);
}
