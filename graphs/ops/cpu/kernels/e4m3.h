// Rounding to e4m3, and rows of e4m3 as words for dot products. Reading is in tables.h.
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

// A vector of words of the sum that scores add up (regions.cpp), and how many `width` elements take.
#if defined(__AVX512BF16__)
constexpr int64_t kSpread = 64;  // elements that are spread over words together
#else
constexpr int64_t kSpread = kLanes;
#endif
inline int64_t spread_words(int64_t width) {
  return (width + kSpread - 1) / kSpread * kSpread / kPerWord<bf16>;
}

// `width` codes as words, zeros after the last. Of sixteen bytes the first eight go to one vector
// and the others to the next: that is how bytes become words with the fewest shuffles.
inline void spread_codes(const uint8_t* codes, int64_t width, float* out) {
#if defined(__AVX512BF16__)
  const __m512i low_0 = _mm512_load_si512(kTables.e4m3_low);
  const __m512i low_1 = _mm512_load_si512(kTables.e4m3_low + 64);
  const __m512i high_0 = _mm512_load_si512(kTables.e4m3_high);
  const __m512i high_1 = _mm512_load_si512(kTables.e4m3_high + 64);
  const __m512i sign = _mm512_set1_epi8((char)0x80);
  for (int64_t from = 0; from < width; from += kSpread, out += 2 * kLanes) {
    __mmask64 mask = width - from < kSpread ? ~uint64_t{0} >> (kSpread - width + from) : ~0ull;
    __m512i x = _mm512_maskz_loadu_epi8(mask, codes + from);
    __m512i low = _mm512_permutex2var_epi8(low_0, x, low_1);
    __m512i high = _mm512_permutex2var_epi8(high_0, x, high_1);
    high = _mm512_ternarylogic_epi64(high, x, sign, 0xf8);  // high | (x & sign)
    _mm512_storeu_si512(out, _mm512_unpacklo_epi8(low, high));
    _mm512_storeu_si512(out + kLanes, _mm512_unpackhi_epi8(low, high));
  }
#else
  for (int64_t k = 0; k < width; ++k) out[k] = kE4m3[codes[k]];
  for (int64_t k = width; k < spread_words(width); ++k) out[k] = 0;
#endif
}

// `width` elements in the same order.
inline void spread_head(const bf16* x, int64_t width, float* out) {
#if defined(__AVX512BF16__)
  for (int64_t from = 0; from < width; from += kSpread, out += 2 * kLanes) {
    bf16 part[kSpread] = {};
    std::memcpy(part, x + from, (width - from < kSpread ? width - from : kSpread) * sizeof(bf16));
    for (int64_t eight = 0; eight < 8; ++eight)
      std::memcpy((bf16*)out + (eight % 2 * 4 + eight / 2) * 8, part + eight * 8, 16);
  }
#else
  for (int64_t k = 0; k < width; ++k) out[k] = widen(x[k]);
  for (int64_t k = width; k < spread_words(width); ++k) out[k] = 0;
#endif
}

}  // namespace fs::FS_ISA
