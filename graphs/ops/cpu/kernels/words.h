// Small matrix products C[i][n] (+)= sum over k of A[i][k] * B[k][n], for attention and scores.
//
// Both operands are words of 4 bytes: with avx512 and bf16 a word is two neighbouring elements of
// the sum, everywhere else one float (bf16 widens exactly). B is packed, so that sixteen columns
// are one vector: `pack_across` makes a row of memory a column (keys, for q.k), `pack_along` a row
// (values, for p.v). Keeps true: an element of C is one chain of additions over k in rising order,
// whatever is computed beside it.
#pragma once

#include "kernels/operand.h"

namespace fs::FS_ISA {

// Elements of X in a word.
template <typename X>
constexpr int64_t kPerWord = sizeof(float) / sizeof(Packed<X>);

template <typename X>
constexpr int64_t words(int64_t elements) { return (elements + kPerWord<X> - 1) / kPerWord<X>; }

// The registers of a set hold kRowTile x kColumnTile sums.
#if defined(__AVX512F__)
constexpr int kRowTile = 6, kColumnTile = 4;
#else
constexpr int kRowTile = 2, kColumnTile = 2;
#endif

template <typename X>
inline V mac_words(V acc, V a, V b) {
#if defined(__AVX512BF16__)
  if constexpr (kPerWord<X> == 2) return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)};
  else
#endif
  return fma(a, b, acc);
}

// Rows of memory that are read after a product, fetched line by line while it is computed.
struct Ahead {
  static constexpr int64_t kMost = 64;
  const char* rows[kMost];
  int64_t count = 0, bytes = 0, row = 0, at = 0;

  int64_t lines() const { return count * ((bytes + 63) / 64); }
  // The first lines of all rows come first: rows are often on pages of their own, and what waits
  // for one page table entry should not wait for the others.
  void fetch() {
    if (at >= bytes) return;
    __builtin_prefetch(rows[row] + at, 0, 2);  // the first cache holds what is computed
    if (++row == count) row = 0, at += 64;
  }
};

// Strides are in words; `columns` counts vectors of sixteen. `keep`: add to what is in C.
struct Product {
  const float* a;
  int64_t a_stride, rows;
  const float* b;
  int64_t b_stride, columns, steps;
  float* c;
  int64_t c_stride;
  bool keep;
  Ahead* ahead;
};

template <typename X, int R, int N>
void product_tile(const Product& p, int64_t row, int64_t column, int64_t fetches) {
  const float* a = p.a + row * p.a_stride;
  const float* b = p.b + column * kLanes;
  float* c = p.c + row * p.c_stride + column * kLanes;
  V acc[R][N];
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n)
      acc[r][n] = p.keep ? load(c + r * p.c_stride + n * kLanes) : splat(0);
  for (int64_t k = 0; k < p.steps; ++k) {
    for (int64_t i = 0; i < fetches; ++i) p.ahead->fetch();
    V across[N];
    for (int n = 0; n < N; ++n) across[n] = load(b + k * p.b_stride + n * kLanes);
    for (int r = 0; r < R; ++r) {
      V one = splat(a[r * p.a_stride + k]);
      for (int n = 0; n < N; ++n) acc[r][n] = mac_words<X>(acc[r][n], across[n], one);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int n = 0; n < N; ++n) store(acc[r][n], c + r * p.c_stride + n * kLanes);
}

// The tile of exactly `rows` x `columns`.
template <typename X, int R = kRowTile, int N = kColumnTile>
void product_part(const Product& p, int64_t row, int64_t rows, int64_t column, int64_t columns,
                  int64_t fetches) {
  if constexpr (R > 1)
    if (rows < R) return product_part<X, R - 1, N>(p, row, rows, column, columns, fetches);
  if constexpr (N > 1)
    if (columns < N) return product_part<X, R, N - 1>(p, row, rows, column, columns, fetches);
  product_tile<X, R, N>(p, row, column, fetches);
}

template <typename X>
void multiply(const Product& p) {
  int64_t groups = (p.rows + kRowTile - 1) / kRowTile;
  int64_t loops = groups * ((p.columns + kColumnTile - 1) / kColumnTile) * p.steps;
  int64_t fetches = p.ahead ? (p.ahead->lines() + loops - 1) / loops : 0;
  for (int64_t column = 0; column < p.columns; column += kColumnTile) {
    int64_t columns = p.columns - column < kColumnTile ? p.columns - column : kColumnTile;
    for (int64_t g = 0; g < groups; ++g) {
      int64_t row = g * p.rows / groups, end = (g + 1) * p.rows / groups;
      product_part<X>(p, row, end - row, column, columns, fetches);
    }
  }
}

#if defined(__AVX512F__)
// Sixteen vectors of sixteen words, rows to columns.
inline void transpose(__m512i (&x)[kLanes]) {
  __m512i y[kLanes];
  for (int i = 0; i < kLanes; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < kLanes; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < kLanes; i += 8) {
      y[i + j] = _mm512_shuffle_i32x4(x[i + j], x[i + j + 4], 0x88);
      y[i + j + 4] = _mm512_shuffle_i32x4(x[i + j], x[i + j + 4], 0xdd);
    }
    x[j] = _mm512_shuffle_i32x4(y[j], y[j + 8], 0x88);
    x[j + 4] = _mm512_shuffle_i32x4(y[j + 4], y[j + 12], 0x88);
    x[j + 8] = _mm512_shuffle_i32x4(y[j], y[j + 8], 0xdd);
    x[j + 12] = _mm512_shuffle_i32x4(y[j + 4], y[j + 12], 0xdd);
  }
}
#endif

// Sixteen rows of `width` elements, each a column of B: words(width) steps, zeros after the last.
template <typename X>
void pack_across(const X* const (&rows)[kLanes], int64_t width, float* b, int64_t b_stride) {
#if defined(__AVX512F__)
  if constexpr (sizeof(X) == sizeof(Packed<X>)) {
    constexpr int64_t chunk = kLanes * kPerWord<X>;
    for (int64_t from = 0; from < width; from += chunk) {
      int64_t left = width - from < chunk ? width - from : chunk;
      uint64_t mask = (uint64_t{1} << left) - 1;
      __m512i x[kLanes];
      for (int i = 0; i < kLanes; ++i)
        x[i] = sizeof(X) == 2 ? _mm512_maskz_loadu_epi16((__mmask32)mask, rows[i] + from)
                              : _mm512_maskz_loadu_epi32((__mmask16)mask, rows[i] + from);
      transpose(x);
      float* to = b + from / kPerWord<X> * b_stride;
      for (int64_t i = 0; i < words<X>(left); ++i) _mm512_storeu_si512(to + i * b_stride, x[i]);
    }
    return;
  }
#endif
  for (int lane = 0; lane < kLanes; ++lane)
    for (int64_t k = 0; k < width; ++k) b[k * b_stride + lane] = widen(rows[lane][k]);
}

// kPerWord rows of `width` elements as one step of B, zeros up to the next multiple of sixteen.
template <typename X>
void pack_along(const X* const (&rows)[kPerWord<X>], int64_t width, float* b) {
#if defined(__AVX512BF16__)
  if constexpr (kPerWord<X> == 2) {
    const __m512i low = _mm512_setr_epi32(
        0x200000, 0x210001, 0x220002, 0x230003, 0x240004, 0x250005, 0x260006, 0x270007, 0x280008,
        0x290009, 0x2a000a, 0x2b000b, 0x2c000c, 0x2d000d, 0x2e000e, 0x2f000f);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    for (int64_t from = 0; from < width; from += 2 * kLanes) {
      int64_t left = width - from < 2 * kLanes ? width - from : 2 * kLanes;
      __mmask32 mask = (__mmask32)((uint64_t{1} << left) - 1);
      __m512i x = _mm512_maskz_loadu_epi16(mask, rows[0] + from);
      __m512i y = _mm512_maskz_loadu_epi16(mask, rows[1] + from);
      _mm512_storeu_si512(b + from, _mm512_permutex2var_epi16(x, low, y));
      if (left > kLanes)
        _mm512_storeu_si512(b + from + kLanes, _mm512_permutex2var_epi16(x, high, y));
    }
    return;
  }
#endif
  int64_t k = 0;
  for (; k + kLanes <= width; k += kLanes) store(load(rows[0] + k), b + k);
  if (k < width) store(load_part(rows[0] + k, width - k), b + k);
}

// A row of A: `width` elements as words, zeros after the last.
template <typename X>
void pack_row(const X* row, int64_t width, float* a) {
  if constexpr (sizeof(X) == sizeof(Packed<X>)) {
    a[words<X>(width) - 1] = 0;
    std::memcpy(a, row, width * sizeof(X));
  } else {
    for (int64_t k = 0; k < width; ++k) a[k] = widen(row[k]);
  }
}

}  // namespace fs::FS_ISA
