// The widest vectors of floats and of 32-bit and 64-bit whole numbers that the instruction set has,
// as the compiler's own vector types: arithmetic, comparisons and ?: work lane by lane.
//
// Included by the sampling kernels alone. Keeps true: an operation gives a lane what it would give
// a scalar, so neither the width nor the place of an entry among the lanes matters.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/vec.h"

namespace fs::FS_ISA::sampling {

#if defined(__AVX512F__)
constexpr int kVector = 64;
#elif defined(__AVX2__)
constexpr int kVector = 32;
#else
constexpr int kVector = 16;
#endif
constexpr int kWide = kVector / 4;  // lanes of 32 bits

using Floats = float __attribute__((vector_size(kVector)));
using Ints = int32_t __attribute__((vector_size(kVector)));
using Words = uint32_t __attribute__((vector_size(kVector)));
using Longs = uint64_t __attribute__((vector_size(kVector)));  // half as many lanes

template <typename T>
inline T load_as(const void* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}
template <typename T>
inline void put(T value, void* p) {
  std::memcpy(p, &value, sizeof(T));
}
inline Floats all(float x) { return Floats{} + x; }
inline float as_float(int32_t x) { return static_cast<float>(x); }
inline Floats as_float(Ints x) { return __builtin_convertvector(x, Floats); }

// x in the lanes where a >= bound, 0 elsewhere.
inline V where_at_least(V a, float bound, V x) {
  Floats values[kLanes / kWide], kept[kLanes / kWide];
  std::memcpy(values, &a, 64);
  std::memcpy(kept, &x, 64);
  for (int i = 0; i < kLanes / kWide; ++i) kept[i] = values[i] >= bound ? kept[i] : Floats{};
  std::memcpy(&x, kept, 64);
  return x;
}

// Of each lane's low 32 bits the whole product.
inline Longs product(Longs a, uint32_t b) {
#if defined(__AVX512F__)
  return (Longs)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined(__AVX2__)
  return (Longs)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#else
  return (a & 0xffffffff) * uint64_t{b};
#endif
}

// Whether a comparison held in any lane.
inline bool any(Ints held) {
#if defined(__AVX512F__)
  return _mm512_test_epi32_mask((__m512i)held, (__m512i)held) != 0;
#elif defined(__AVX2__)
  return !_mm256_testz_si256((__m256i)held, (__m256i)held);
#else
  int32_t found = 0;
  for (int i = 0; i < kWide; ++i) found |= held[i];
  return found != 0;
#endif
}

}  // namespace fs::FS_ISA::sampling
