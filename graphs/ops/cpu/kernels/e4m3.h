// Rounding to e4m3, and columns of e4m3 rows for products of words. Reading is in tables.h.
#pragma once

#include "kernels/tables.h"
#include "kernels/words.h"

namespace fs::FS_ISA {

// To nearest even, saturating at 448; NaN stays NaN. Without a branch, so that loops become vectors.
inline float round_e4m3(float x) {
  uint32_t bits;
  float magnitude = std::fabs(x), normal;
  magnitude = magnitude > 448 ? 448 : magnitude;
  std::memcpy(&bits, &magnitude, 4);
  bits = (bits + 0x7ffff + (bits >> 20 & 1)) & 0xfff00000;
  std::memcpy(&normal, &bits, 4);
  // Below 2^-6 values are multiples of 2^-9, as floats from 2^14 on are.
  float small = (magnitude + 24576.0f) - 24576.0f;
  float y = std::copysign(magnitude < 0.015625f ? small : normal, x);
  return x != x ? x : y;
}

inline uint8_t to_e4m3(float x) {
  float y = round_e4m3(x), magnitude = std::fabs(y);
  uint32_t bits;
  std::memcpy(&bits, &magnitude, 4);
  uint32_t code = magnitude < 0.015625f ? static_cast<uint32_t>(magnitude * 512)
                                        : (bits >> 20) - (120 << 3);
  return static_cast<uint8_t>((std::signbit(y) ? 0x80 : 0) | (y != y ? 0x7f : code));
}

// Sixteen rows of `width` codes, each a column of B in words of bf16: words<bf16>(width) steps.
inline void pack_codes_across(const uint8_t* const* rows, int64_t width, float* b,
                              int64_t b_stride) {
#if defined(__AVX512BF16__)
  const __m512i low_0 = _mm512_load_si512(kTables.e4m3_low);
  const __m512i low_1 = _mm512_load_si512(kTables.e4m3_low + 64);
  const __m512i high_0 = _mm512_load_si512(kTables.e4m3_high);
  const __m512i high_1 = _mm512_load_si512(kTables.e4m3_high + 64);
  const __m512i sign = _mm512_set1_epi8((char)0x80);
  // In each four words: the first two codes of all, then the last two.
  const __m512i halves = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  int64_t steps = words<bf16>(width);
  for (int64_t from = 0; from < width; from += 64) {
    int64_t left = width - from < 64 ? width - from : 64;
    __mmask64 mask = ~uint64_t{0} >> (64 - left);
    __m512i x[kLanes];
    for (int i = 0; i < kLanes; ++i) x[i] = _mm512_maskz_loadu_epi8(mask, rows[i] + from);
    transpose(x);
    for (int i = 0; i < kLanes && from / 2 + 2 * i < steps; ++i) {
      __m512i codes = _mm512_shuffle_epi8(x[i], halves);
      __m512i low = _mm512_permutex2var_epi8(low_0, codes, low_1);
      __m512i high = _mm512_permutex2var_epi8(high_0, codes, high_1);
      high = _mm512_ternarylogic_epi64(high, codes, sign, 0xf8);  // high | (codes & sign)
      float* to = b + (from / 2 + 2 * i) * b_stride;
      _mm512_storeu_si512(to, _mm512_unpacklo_epi8(low, high));
      if (from / 2 + 2 * i + 1 < steps)
        _mm512_storeu_si512(to + b_stride, _mm512_unpackhi_epi8(low, high));
    }
  }
#else
  for (int lane = 0; lane < kLanes; ++lane)
    for (int64_t k = 0; k < width; ++k) b[k * b_stride + lane] = kE4m3[rows[lane][k]];
#endif
}

}  // namespace fs::FS_ISA
