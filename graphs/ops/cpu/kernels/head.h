// What happens to one head of a row before it is used: norm, then rotation (architecture 3.2, 3.4).
#pragma once

#include "kernels/rows.h"
#include "kernels/vec.h"

namespace fs::FS_ISA {

// The norm of x, rounded to X, as floats.
template <typename X, typename T, typename W>
void rms_norm_head(const T* x, const W* weight, int64_t width, float eps, float* out) {
  rms_norm_row(x, weight, width, eps, [&](V normed, int64_t i, int64_t count) {
    X y[kLanes];
    store(normed, y);
    store_some(load(y), out + i, count);
  });
}

// Rotates the leading 2 * half of x in place, halves layout; `rotary` is cosines, then sines.
inline void rotate_head(float* x, const float* rotary, int64_t half) {
  each_step(half, [&](int64_t i, int64_t count) {
    V c = load_some(rotary + i, count), s = load_some(rotary + half + i, count);
    V first = load_some(x + i, count), second = load_some(x + half + i, count);
    store_some(sub(mul(first, c), mul(second, s)), x + i, count);
    store_some(add(mul(second, c), mul(first, s)), x + half + i, count);
  });
}

// `width` floats rounded to T.
template <typename T>
void store_head(const float* x, int64_t width, T* out) {
  each_step(width, [&](int64_t i, int64_t count) {
    store_some(load_some(x + i, count), out + i, count);
  });
}

// `width` elements of T as floats; returns them.
template <typename T>
const float* widened(const T* x, int64_t width, float* out) {
  each_step(width, [&](int64_t i, int64_t count) {
    store_some(load_some(x + i, count), out + i, count);
  });
  return out;
}

// A vector of bf16 or f32, rounded to bf16, as floats.
inline void round_vector(const void* x, bool is_bf16, int64_t width, float* out) {
  for (int64_t i = 0; i < width; ++i)
    out[i] = is_bf16 ? widen(((const bf16*)x)[i]) : rounded<bf16>(((const float*)x)[i]);
}

}  // namespace fs::FS_ISA
