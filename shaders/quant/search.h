// Host only: what the encoders of the K and IQ4 formats share. A sub-block's weights are values of a grid (whole
// numbers, or a table) times a scale, less an offset; scales and offsets are codes themselves, in units of two f16.
// Searched is the least sum of squared errors, each times the weight's importance: by least squares from several
// beginnings, then among the neighbours of the scales' codes, and again by least squares for their units.
#pragma once
#include "format.h"

#ifndef __METAL_VERSION__
#include <algorithm>

namespace foundry::search {

typedef float Lanes __attribute__((vector_size(16)));

inline Lanes lanes(float v) { return Lanes{v, v, v, v}; }
inline float sum(Lanes v) { return (v[0] + v[1]) + (v[2] + v[3]); }
inline Lanes load(const float* w) { return Lanes{w[0], w[1], w[2], w[3]}; }

template <int Low, int High> struct Whole {
  static constexpr float low = Low, high = High;
  static Lanes nearest(Lanes v) {
    v = (v + 12582912.0f) - 12582912.0f; // whole, as 2^23 + 2^22 has no room for a fraction
    v = v < low ? lanes(low) : v;
    return v > high ? lanes(high) : v;
  }
};

// Weights and the importance of each: a factor of its squared error, above 0.
struct Weights {
  const float *w, *importance;
  Weights from(int j) const { return {w + j, importance + j}; }
};

// Sums over N weights and the values nearest to (weight + offset) / scale: what least squares need. n: of importance.
struct Moments {
  float n, w, v, vv, wv;
};

template <typename Grid, int N> Moments moments(Weights from, float scale, float offset) {
  const float inverse = reciprocal(scale);
  Lanes n{}, w{}, v{}, vv{}, wv{};
  for (int j = 0; j < N; j += 4) {
    const Lanes weight = load(from.w + j), value = Grid::nearest((weight + offset) * inverse);
    const Lanes factor = load(from.importance + j);
    n += factor, w += factor * weight, v += factor * value;
    vv += factor * (value * value), wv += factor * (weight * value);
  }
  return {sum(n), sum(w), sum(v), sum(vv), sum(wv)};
}

template <typename Grid, int N> float squared_error(Weights from, float scale, float offset) {
  const float inverse = reciprocal(scale);
  Lanes error{};
  for (int j = 0; j < N; j += 4) {
    const Lanes weight = load(from.w + j) + offset, rest = weight - Grid::nearest(weight * inverse) * scale;
    error += load(from.importance + j) * (rest * rest);
  }
  return sum(error);
}

struct Fit {
  float scale, offset;
  float norm_weight; // by how much the sum of squared errors is less than that of the squared weights
};

// The best scale and offset (from 0 on) for given values.
template <bool Offset> Fit solve(const Moments& m) {
  const float variance = m.vv - m.v * m.v / m.n, covariance = m.wv - m.v * m.w / m.n;
  if (Offset && variance > 0.0f) {
    const float scale = covariance / variance, offset = (scale * m.v - m.w) / m.n;
    if (offset > 0.0f) return {scale, offset, m.w * m.w / m.n + covariance * scale};
  }
  if (m.vv == 0.0f) return {0.0f, 0.0f, 0.0f};
  return {m.wv / m.vv, 0.0f, m.wv * m.wv / m.vv};
}

// The best that is found for N weights.
template <typename Grid, int N, bool Offset> Fit fit(Weights from) {
  float least = 0.0f, largest = from.w[0];
  for (int j = 0; j < N; ++j) {
    least = std::fmin(least, from.w[j]);
    largest = std::fmax(largest, from.w[j]);
  }
  const float range = Offset ? largest - least : -least > largest ? least : largest;
  if (range == 0.0f) return {0.0f, Offset ? -least : 0.0f, 0.0f};
  Fit best{0.0f, 0.0f, -1.0f};
  const auto consider = [&](float scale, float offset) {
    Fit found = solve<Offset>(moments<Grid, N>(from, scale, offset));
    if (Offset) found = solve<Offset>(moments<Grid, N>(from, found.scale, found.offset));
    const bool better = found.norm_weight > best.norm_weight;
    if (better) best = found;
    return better;
  };
  for (int step = -4; step <= 8; ++step) { // from a range that is a quarter larger to two thirds of it
    const float share = 1.0f + 0.0625f * static_cast<float>(step);
    consider(range / (share * Grid::high), Offset ? -least : 0.0f);
    if (!Offset) consider(range / (share * Grid::low), 0.0f);
  }
  for (int round = 0; round < 4 && consider(best.scale, best.offset); ++round) {
  }
  return best;
}

// Subs sub-blocks of N weights, whose scales are codes from SLow to SHigh in units of d, and offsets codes from 0 to
// SHigh in units of m.
template <typename Grid, int Subs, int N, int SLow, int SHigh, bool Offset> struct Block {
  foundry_half d, m;
  int scales[Subs], offsets[Subs];

  explicit Block(Weights from) : d(narrow(0.0f)), m(narrow(0.0f)), scales{}, offsets{} {
    float largest = 0.0f;
    for (int j = 0; j < Subs * N; ++j) largest = std::fmax(largest, std::fabs(from.w[j]));
    if (largest < 1e-8f) return; // less than half of the least f16
    if (largest > 1e12f) {       // their squares are too large for f32, and they are for any f16
      d = narrow(INFINITY);
      return;
    }
    Fit fits[Subs];
    float unit = 0.0f, offset_unit = 0.0f;
    for (int s = 0; s < Subs; ++s) {
      fits[s] = fit<Grid, N, Offset>(from.from(s * N));
      if (std::fabs(fits[s].scale) > std::fabs(unit)) unit = fits[s].scale;
      offset_unit = std::fmax(offset_unit, fits[s].offset);
    }
    float least = INFINITY, next_unit = 0.0f, next_offset_unit = 0.0f;
    const auto consider = [&](float a, float b) {
      Block found(narrow(a), narrow(b));
      const float error = found.choose(from, fits, a, b);
      const bool better = error < least;
      if (better) *this = found, least = error, next_unit = a, next_offset_unit = b;
      return better;
    };
    for (int step = 0; step < (Offset ? 4 : 8);
         ++step) { // the largest gets the highest code, or one down to about half of it
      const float share = 1.0f - 0.0625f * static_cast<float>(step);
      consider(unit / (share * SHigh), offset_unit / SHigh);
      if (SLow < 0) consider(unit / (share * SLow), offset_unit / SHigh);
    }
    if (!std::isfinite(least)) d = narrow(INFINITY);
    for (int round = 0; round < 3 && std::isfinite(least) && consider(next_unit, next_offset_unit); ++round) {
    }
  }

  // Calls each(number of a weight, its value) for sub-block s; not if the weights are too large.
  template <typename F> void values(Weights from, int s, F each) const {
    const float offset = offset_of(s), inverse = reciprocal(scale_of(s));
    if (!std::isfinite(widen(d))) return;
    for (int j = 0; j < N; j += 4) {
      const Lanes value = Grid::nearest((load(from.w + s * N + j) + offset) * inverse);
      for (int lane = 0; lane < 4; ++lane) each(s * N + j + lane, static_cast<int>(value[lane]));
    }
  }

private:
  Block(foundry_half unit, foundry_half offset_unit) : d(unit), m(offset_unit), scales{}, offsets{} {}

  float scale_of(int s) const { return widen(d) * static_cast<float>(scales[s]); }
  float offset_of(int s) const { return widen(m) * static_cast<float>(offsets[s]); }

  static int near(float share, int move, int low) {
    return static_cast<int>(std::fmin(std::fmax(std::round(share) + move, low), SHigh));
  }

  // Sets the codes by what is best near `fits`; gives the error, and the units that least squares find for the codes.
  float choose(Weights from, const Fit* fits, float& unit, float& offset_unit) {
    const float inverse = reciprocal(widen(d)), offset_inverse = reciprocal(widen(m));
    double total = 0.0, ss = 0.0, so = 0.0, oo = 0.0, ws = 0.0, wo = 0.0;
    for (int s = 0; s < Subs; ++s) {
      float least = INFINITY;
      for (int i = -1; i <= 1; ++i) {
        const int scale = near(fits[s].scale * inverse, i, SLow);
        for (int o = Offset ? -2 : 0; o <= (Offset ? 2 : 0); ++o) {
          const int offset = near(fits[s].offset * offset_inverse, o, 0);
          const float error = squared_error<Grid, N>(from.from(s * N), widen(d) * static_cast<float>(scale),
                                                     widen(m) * static_cast<float>(offset));
          if (error < least) least = error, scales[s] = scale, offsets[s] = offset;
        }
      }
      total += least;
      const Moments best = moments<Grid, N>(from.from(s * N), scale_of(s), offset_of(s));
      const double scale = scales[s], offset = offsets[s];
      ss += scale * scale * best.vv, ws += scale * best.wv;
      so += scale * offset * best.v, oo += best.n * offset * offset, wo += offset * best.w;
    }
    const double determinant = ss * oo - so * so;
    if (Offset && determinant > 0.0) {
      unit = static_cast<float>((ws * oo - wo * so) / determinant);
      offset_unit = static_cast<float>(std::fmax((ws * so - wo * ss) / determinant, 0.0));
    } else if (ss > 0.0) {
      unit = static_cast<float>((ws + widen(m) * so) / ss);
    }
    return static_cast<float>(total);
  }
};

// Sets bits of byte `at` of words that were 0.
inline void put(uint16_t* words, int at, int bits) { words[at / 2] |= static_cast<uint16_t>(bits << at % 2 * 8); }

} // namespace foundry::search
#endif
