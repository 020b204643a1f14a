// Dot products of heads and summaries: lanes over the depth, many at a time.
//
// Both operands are words as spread_codes and spread_head make them (e4m3.h). Keeps true: a dot
// product is sixteen chains of additions in rising order, then the tree of sum() in vec.h, whatever
// is computed beside it.
#pragma once

#include "kernels/words.h"

namespace fs::FS_ISA {

#if defined(__AVX512F__)
constexpr int kHeadTile = 4, kRegionTile = 4;
#else
constexpr int kHeadTile = 2, kRegionTile = 2;
#endif

// out[h * stride + r] = the sum of x[h][r].
inline void sums(const V (&x)[kHeadTile][kRegionTile], float* out, int64_t stride) {
#if defined(__AVX512F__)
  // Halves onto halves, of two values at a time in one register.
  auto halves = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  };
  auto quarters = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
  };
  auto pairs = [](__m512 a, __m512 b) {
    __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    return _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)),
                         _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
  };
  auto ones = [](__m512 a, __m512 b) {
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
  };
  __m512 of[kRegionTile];  // a quarter of the register a head
#pragma GCC unroll 8
  for (int r = 0; r < kRegionTile; ++r)
    of[r] = quarters(halves(x[0][r].v, x[1][r].v), halves(x[2][r].v, x[3][r].v));
  __m512 all = ones(pairs(of[0], of[1]), pairs(of[2], of[3]));
  _mm_storeu_ps(out, _mm512_castps512_ps128(all));
  _mm_storeu_ps(out + stride, _mm512_extractf32x4_ps(all, 1));
  _mm_storeu_ps(out + 2 * stride, _mm512_extractf32x4_ps(all, 2));
  _mm_storeu_ps(out + 3 * stride, _mm512_extractf32x4_ps(all, 3));
#else
  for (int h = 0; h < kHeadTile; ++h)
    for (int r = 0; r < kRegionTile; ++r) out[h * stride + r] = sum(x[h][r]);
#endif
}

// c[h * stride + r] = a[h] . b[r] for `heads` of at most kHeadTile and kRegionTile regions, of rows
// of `words`. Rows of c up to kHeadTile are written.
template <int H = kHeadTile>
void dot_tile(const float* a, int64_t heads, const float* b, int64_t words, float* c,
              int64_t stride) {
  if constexpr (H > 1)
    if (heads < H) return dot_tile<H - 1>(a, heads, b, words, c, stride);
  V acc[kHeadTile][kRegionTile];
#pragma GCC unroll 8
  for (auto& row : acc)
#pragma GCC unroll 8
    for (V& each : row) each = splat(0);
  for (int64_t k = 0; k < words; k += kLanes) {
    V region[kRegionTile];
#pragma GCC unroll 8
    for (int r = 0; r < kRegionTile; ++r) region[r] = load(b + r * words + k);
#pragma GCC unroll 8
    for (int h = 0; h < H; ++h) {
      V head = load(a + h * words + k);
#pragma GCC unroll 8
      for (int r = 0; r < kRegionTile; ++r) acc[h][r] = mac_words<bf16>(acc[h][r], region[r], head);
    }
  }
  sums(acc, c, stride);
}

// c[h * stride + r] = a[h] . b[r] of `regions`, a multiple of kRegionTile. c has rows up to the next
// multiple of kHeadTile.
inline void dots(const float* a, int64_t heads, const float* b, int64_t regions, int64_t words,
                 float* c, int64_t stride) {
  for (int64_t r = 0; r < regions; r += kRegionTile)
    for (int64_t h = 0; h < heads; h += kHeadTile)
      dot_tile(a + h * words, heads - h, b + r * words, words, c + h * stride + r, stride);
}

}  // namespace fs::FS_ISA
