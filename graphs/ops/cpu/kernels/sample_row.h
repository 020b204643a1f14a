// A row of logits in chunks of 64: its largest entry, its log-sum-exp, its scaled values.
//
// Knows nothing of rules or noise. Keeps true: what an entry becomes depends on the entry, and a
// sum is taken in one order of chunks and lanes, whatever the number of threads.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/sample_lanes.h"

namespace fs::FS_ISA::sampling {

constexpr int64_t kChunk = 64;
constexpr int64_t kBlock = 16 * kChunk;
constexpr float kNever = -std::numeric_limits<float>::infinity();

// Chunk `begin` of a row; past its end, minus infinity in `part`.
inline const float* chunk(const float* x, int64_t begin, int64_t count, float* part) {
  if (begin + kChunk <= count) return x + begin;
  std::fill(std::copy(x + begin, x + count, part), part + kChunk, kNever);
  return part;
}

// Doubles under the lanes of a value.
struct Sum {
  double lane[kLanes] = {};
  void add(V v) {
    float x[kLanes];
    store(v, x);
    for (int i = 0; i < kLanes; ++i) lane[i] += x[i];
  }
  double total() const {
    double whole = 0;
    for (double x : lane) whole += x;
    return whole;
  }
};

struct Top {
  float value = kNever;
  int64_t index = 0;  // the first of its value
  bool nan = false;   // the row holds NaN; then the rest means nothing
};

inline Top largest(const float* x, int64_t count) {
  Top top;
  Ints odd{};
  float part[kChunk];
  int64_t best = 0;
  for (int64_t block = 0; block < count; block += kBlock) {
    V high[4] = {splat(kNever), splat(kNever), splat(kNever), splat(kNever)};
    for (int64_t at = block; at < std::min(block + kBlock, count); at += kChunk) {
      const float* p = chunk(x, at, count, part);
      for (int i = 0; i < 4; ++i) high[i] = max(load(p + i * kLanes), high[i]);
      for (int i = 0; i < kChunk; i += kWide) {
        Floats here = load_as<Floats>(p + i);
        odd |= here != here;
      }
    }
    float found = largest(max(max(high[0], high[1]), max(high[2], high[3])));
    if (found > top.value) top.value = found, best = block;
  }
  top.nan = any(odd);
  top.index = std::find(x + best, x + std::min(best + kBlock, count), top.value) - x;
  return top;
}

// log of the sum of e^(x - top): what log_softmax subtracts below the largest entry.
inline double log_sum(const float* x, int64_t count, float top) {
  Sum sum;
  float part[kChunk];
  for (int64_t at = 0; at < count; at += kChunk) {
    const float* p = chunk(x, at, count, part);
    V e[4];
    for (int i = 0; i < 4; ++i) e[i] = exp(sub(load(p + i * kLanes), splat(top)));
    sum.add(add(add(e[0], e[1]), add(e[2], e[3])));
  }
  return std::log(sum.total());
}

// A row below its largest entry and divided by the temperature: 0 at the top, never NaN.
struct Scaled {
  const float* x;
  int64_t count;
  float top, warm;

  float at(int64_t id) const { return (x[id] - top) / warm; }

  // A chunk of it to one part in a million, without the division. A temperature so small that its
  // inverse is infinite gives values that are too large.
  void rough(int64_t begin, float* s) const {
    float part[kChunk], inverse = 1 / std::max(warm, 1e-30f);
    const float* p = chunk(x, begin, count, part);
    for (int i = 0; i < kChunk; i += kWide)
      put((load_as<Floats>(p + i) - top) * inverse, s + i);
  }
  // What the rough value of an entry reaches that is at least `bound`.
  static float below(float bound) { return bound * (1 + 1e-5f) - 1e-30f; }
};

}  // namespace fs::FS_ISA::sampling
