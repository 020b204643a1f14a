// A row in steps of sixteen lanes, the last one shorter: reading, writing and RMSNorm of it.
// Keeps true: sums run in one order, sixteen lanes over the row and then the tree of sum().
#pragma once

#include <cmath>

#include "kernels/vec.h"

namespace fs::FS_ISA {

// body(offset, count) over a row in steps of sixteen, the last one shorter.
template <typename Body>
inline void each_step(int64_t width, const Body& body) {
  for (int64_t i = 0; i < width; i += kLanes) body(i, width - i < kLanes ? width - i : kLanes);
}

template <typename T>
inline V load_some(const T* p, int64_t count) {
  return count == kLanes ? load(p) : load_part(p, count);
}

template <typename T>
inline void store_some(V x, T* p, int64_t count) {
  if (count == kLanes) return store(x, p);
  T whole[kLanes];
  store(x, whole);
  std::memcpy(p, whole, count * sizeof(T));
}

// RMSNorm with a zero-centred weight, x * (mean(x^2) + eps)^(-1/2) * (1 + weight):
// put(lanes, offset, count) takes each step of it.
template <typename T, typename W, typename Put>
inline void rms_norm_row(const T* x, const W* weight, int64_t width, float eps, const Put& put) {
  V squares = splat(0);
  each_step(width, [&](int64_t i, int64_t count) {
    V part = load_some(x + i, count);
    squares = fma(part, part, squares);
  });
  V scale = splat(1 / std::sqrt(sum(squares) / static_cast<float>(width) + eps));
  each_step(width, [&](int64_t i, int64_t count) {
    V factor = add(splat(1), load_some(weight + i, count));
    put(mul(mul(load_some(x + i, count), scale), factor), i, count);
  });
}

}  // namespace fs::FS_ISA
