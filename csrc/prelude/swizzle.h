// The names of all swizzles as union members: MSL_SWIZZLES_N(view, T) declares `view<T, indices...> name;` for each
// combination of two, three or four of a vector's N components, spelled xyzw and rgba.
#pragma once

// V: the view, T: the element type, n: the name so far; the indices so far follow. One macro per position, because a
// macro does not expand within itself.
// clang-format off
#define MSL_SWIZZLE_END(V, T, n, ...) V<T, __VA_ARGS__> n;

#define MSL_XYZW_2_1(V, T, n, ...)                                                                                     \
  MSL_SWIZZLE_END(V, T, n##x, __VA_ARGS__, 0) MSL_SWIZZLE_END(V, T, n##y, __VA_ARGS__, 1)
#define MSL_XYZW_2_2(V, T, n, ...)                                                                                     \
  MSL_XYZW_2_1(V, T, n##x, __VA_ARGS__, 0) MSL_XYZW_2_1(V, T, n##y, __VA_ARGS__, 1)
#define MSL_XYZW_2_3(V, T, n, ...)                                                                                     \
  MSL_XYZW_2_2(V, T, n##x, __VA_ARGS__, 0) MSL_XYZW_2_2(V, T, n##y, __VA_ARGS__, 1)
#define MSL_XYZW_2(V, T)                                                                                               \
  MSL_XYZW_2_1(V, T, x, 0) MSL_XYZW_2_1(V, T, y, 1) MSL_XYZW_2_2(V, T, x, 0) MSL_XYZW_2_2(V, T, y, 1)                  \
  MSL_XYZW_2_3(V, T, x, 0) MSL_XYZW_2_3(V, T, y, 1)
#define MSL_RGBA_2_1(V, T, n, ...)                                                                                     \
  MSL_SWIZZLE_END(V, T, n##r, __VA_ARGS__, 0) MSL_SWIZZLE_END(V, T, n##g, __VA_ARGS__, 1)
#define MSL_RGBA_2_2(V, T, n, ...)                                                                                     \
  MSL_RGBA_2_1(V, T, n##r, __VA_ARGS__, 0) MSL_RGBA_2_1(V, T, n##g, __VA_ARGS__, 1)
#define MSL_RGBA_2_3(V, T, n, ...)                                                                                     \
  MSL_RGBA_2_2(V, T, n##r, __VA_ARGS__, 0) MSL_RGBA_2_2(V, T, n##g, __VA_ARGS__, 1)
#define MSL_RGBA_2(V, T)                                                                                               \
  MSL_RGBA_2_1(V, T, r, 0) MSL_RGBA_2_1(V, T, g, 1) MSL_RGBA_2_2(V, T, r, 0) MSL_RGBA_2_2(V, T, g, 1)                  \
  MSL_RGBA_2_3(V, T, r, 0) MSL_RGBA_2_3(V, T, g, 1)
#define MSL_SWIZZLES_2(V, T) MSL_XYZW_2(V, T) MSL_RGBA_2(V, T)

#define MSL_XYZW_3_1(V, T, n, ...)                                                                                     \
  MSL_SWIZZLE_END(V, T, n##x, __VA_ARGS__, 0) MSL_SWIZZLE_END(V, T, n##y, __VA_ARGS__, 1)                              \
  MSL_SWIZZLE_END(V, T, n##z, __VA_ARGS__, 2)
#define MSL_XYZW_3_2(V, T, n, ...)                                                                                     \
  MSL_XYZW_3_1(V, T, n##x, __VA_ARGS__, 0) MSL_XYZW_3_1(V, T, n##y, __VA_ARGS__, 1)                                    \
  MSL_XYZW_3_1(V, T, n##z, __VA_ARGS__, 2)
#define MSL_XYZW_3_3(V, T, n, ...)                                                                                     \
  MSL_XYZW_3_2(V, T, n##x, __VA_ARGS__, 0) MSL_XYZW_3_2(V, T, n##y, __VA_ARGS__, 1)                                    \
  MSL_XYZW_3_2(V, T, n##z, __VA_ARGS__, 2)
#define MSL_XYZW_3(V, T)                                                                                               \
  MSL_XYZW_3_1(V, T, x, 0) MSL_XYZW_3_1(V, T, y, 1) MSL_XYZW_3_1(V, T, z, 2) MSL_XYZW_3_2(V, T, x, 0)                  \
  MSL_XYZW_3_2(V, T, y, 1) MSL_XYZW_3_2(V, T, z, 2) MSL_XYZW_3_3(V, T, x, 0) MSL_XYZW_3_3(V, T, y, 1)                  \
  MSL_XYZW_3_3(V, T, z, 2)
#define MSL_RGBA_3_1(V, T, n, ...)                                                                                     \
  MSL_SWIZZLE_END(V, T, n##r, __VA_ARGS__, 0) MSL_SWIZZLE_END(V, T, n##g, __VA_ARGS__, 1)                              \
  MSL_SWIZZLE_END(V, T, n##b, __VA_ARGS__, 2)
#define MSL_RGBA_3_2(V, T, n, ...)                                                                                     \
  MSL_RGBA_3_1(V, T, n##r, __VA_ARGS__, 0) MSL_RGBA_3_1(V, T, n##g, __VA_ARGS__, 1)                                    \
  MSL_RGBA_3_1(V, T, n##b, __VA_ARGS__, 2)
#define MSL_RGBA_3_3(V, T, n, ...)                                                                                     \
  MSL_RGBA_3_2(V, T, n##r, __VA_ARGS__, 0) MSL_RGBA_3_2(V, T, n##g, __VA_ARGS__, 1)                                    \
  MSL_RGBA_3_2(V, T, n##b, __VA_ARGS__, 2)
#define MSL_RGBA_3(V, T)                                                                                               \
  MSL_RGBA_3_1(V, T, r, 0) MSL_RGBA_3_1(V, T, g, 1) MSL_RGBA_3_1(V, T, b, 2) MSL_RGBA_3_2(V, T, r, 0)                  \
  MSL_RGBA_3_2(V, T, g, 1) MSL_RGBA_3_2(V, T, b, 2) MSL_RGBA_3_3(V, T, r, 0) MSL_RGBA_3_3(V, T, g, 1)                  \
  MSL_RGBA_3_3(V, T, b, 2)
#define MSL_SWIZZLES_3(V, T) MSL_XYZW_3(V, T) MSL_RGBA_3(V, T)

#define MSL_XYZW_4_1(V, T, n, ...)                                                                                     \
  MSL_SWIZZLE_END(V, T, n##x, __VA_ARGS__, 0) MSL_SWIZZLE_END(V, T, n##y, __VA_ARGS__, 1)                              \
  MSL_SWIZZLE_END(V, T, n##z, __VA_ARGS__, 2) MSL_SWIZZLE_END(V, T, n##w, __VA_ARGS__, 3)
#define MSL_XYZW_4_2(V, T, n, ...)                                                                                     \
  MSL_XYZW_4_1(V, T, n##x, __VA_ARGS__, 0) MSL_XYZW_4_1(V, T, n##y, __VA_ARGS__, 1)                                    \
  MSL_XYZW_4_1(V, T, n##z, __VA_ARGS__, 2) MSL_XYZW_4_1(V, T, n##w, __VA_ARGS__, 3)
#define MSL_XYZW_4_3(V, T, n, ...)                                                                                     \
  MSL_XYZW_4_2(V, T, n##x, __VA_ARGS__, 0) MSL_XYZW_4_2(V, T, n##y, __VA_ARGS__, 1)                                    \
  MSL_XYZW_4_2(V, T, n##z, __VA_ARGS__, 2) MSL_XYZW_4_2(V, T, n##w, __VA_ARGS__, 3)
#define MSL_XYZW_4(V, T)                                                                                               \
  MSL_XYZW_4_1(V, T, x, 0) MSL_XYZW_4_1(V, T, y, 1) MSL_XYZW_4_1(V, T, z, 2) MSL_XYZW_4_1(V, T, w, 3)                  \
  MSL_XYZW_4_2(V, T, x, 0) MSL_XYZW_4_2(V, T, y, 1) MSL_XYZW_4_2(V, T, z, 2) MSL_XYZW_4_2(V, T, w, 3)                  \
  MSL_XYZW_4_3(V, T, x, 0) MSL_XYZW_4_3(V, T, y, 1) MSL_XYZW_4_3(V, T, z, 2) MSL_XYZW_4_3(V, T, w, 3)
#define MSL_RGBA_4_1(V, T, n, ...)                                                                                     \
  MSL_SWIZZLE_END(V, T, n##r, __VA_ARGS__, 0) MSL_SWIZZLE_END(V, T, n##g, __VA_ARGS__, 1)                              \
  MSL_SWIZZLE_END(V, T, n##b, __VA_ARGS__, 2) MSL_SWIZZLE_END(V, T, n##a, __VA_ARGS__, 3)
#define MSL_RGBA_4_2(V, T, n, ...)                                                                                     \
  MSL_RGBA_4_1(V, T, n##r, __VA_ARGS__, 0) MSL_RGBA_4_1(V, T, n##g, __VA_ARGS__, 1)                                    \
  MSL_RGBA_4_1(V, T, n##b, __VA_ARGS__, 2) MSL_RGBA_4_1(V, T, n##a, __VA_ARGS__, 3)
#define MSL_RGBA_4_3(V, T, n, ...)                                                                                     \
  MSL_RGBA_4_2(V, T, n##r, __VA_ARGS__, 0) MSL_RGBA_4_2(V, T, n##g, __VA_ARGS__, 1)                                    \
  MSL_RGBA_4_2(V, T, n##b, __VA_ARGS__, 2) MSL_RGBA_4_2(V, T, n##a, __VA_ARGS__, 3)
#define MSL_RGBA_4(V, T)                                                                                               \
  MSL_RGBA_4_1(V, T, r, 0) MSL_RGBA_4_1(V, T, g, 1) MSL_RGBA_4_1(V, T, b, 2) MSL_RGBA_4_1(V, T, a, 3)                  \
  MSL_RGBA_4_2(V, T, r, 0) MSL_RGBA_4_2(V, T, g, 1) MSL_RGBA_4_2(V, T, b, 2) MSL_RGBA_4_2(V, T, a, 3)                  \
  MSL_RGBA_4_3(V, T, r, 0) MSL_RGBA_4_3(V, T, g, 1) MSL_RGBA_4_3(V, T, b, 2) MSL_RGBA_4_3(V, T, a, 3)
#define MSL_SWIZZLES_4(V, T) MSL_XYZW_4(V, T) MSL_RGBA_4(V, T)
// clang-format on
