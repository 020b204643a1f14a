// Nvfp4 times bf16 with avx512: a block of sixteen weights to each lane, so that a lane's scale
// multiplies its sum, not its weights.
//
// Sixteen blocks, 256 weights of a row, are a knot. Its two registers of codes, shifted by whole
// nibbles, hold in every step two weights of each block: a table makes them bf16 and one
// instruction multiplies and adds. Activations are packed in that order (PackedRows::put). A last
// knot of at most eight blocks is shared by two rows of weights: the even row's, then the odd
// row's. Keeps true: an element is, for each knot, eight steps from zero, then sum * scale added to
// what the knots before left; the tree of sum() and the matrix's factor come last.
#pragma once

#include "kernels/decode.h"
#include "kernels/tiles.h"

#if defined(__AVX512BF16__)

namespace fs::FS_ISA {

constexpr int64_t kKnotSteps = 8, kKnotBlocks = 16;
constexpr int kKnotOuts = 16;  // weight rows whose sums are made together
// Scales are read as f16, which holds e4m3 * 2^-8.
constexpr float kScaleUnit = 256;

// Two neighbouring rows of a matrix.
struct KnotRows {
  const uint8_t *code[2], *scale[2];

  KnotRows(const Matrix& m, int64_t out) {
    for (int i = 0; i < 2; ++i) {
      code[i] = (const uint8_t*)m.weight + row_of(m, out + i) * (m.in / 2);
      scale[i] = (const uint8_t*)m.scale + row_of(m, out + i) * (m.in / 16);
    }
  }
  // Fetches knot k of what will be read later; `shared`: the half of it that there is.
  FS_INLINE void ahead(int64_t k, const Distance& distance, bool shared) const {
    for (int i = 0; i < 2; ++i) {
      prefetch(code[i] + k * 128, distance.weight);
      if (!shared) prefetch(code[i] + k * 128 + 64, distance.weight);
      if (k % 4 == 0) prefetch(scale[i] + k * kKnotBlocks, distance.scale);
    }
  }
};

// One knot: the first and the second eight weights of every block.
struct Knot {
  __m512i half[2];
  __m128i scale;

  // Of eight blocks in a, then eight in b.
  FS_INLINE Knot(__m512i a, __m512i b, __m128i scale) : scale(scale) {
    const __m512i firsts =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i seconds = _mm512_add_epi32(firsts, _mm512_set1_epi32(1));
    half[0] = _mm512_permutex2var_epi32(a, firsts, b);
    half[1] = _mm512_permutex2var_epi32(a, seconds, b);
  }
  FS_INLINE static Knot whole(const KnotRows& w, int i, int64_t k) {
    const uint8_t *code = w.code[i] + k * 128, *scales = w.scale[i] + k * kKnotBlocks;
    return {_mm512_loadu_si512(code), _mm512_loadu_si512(code + 64),
            _mm_loadu_si128((const __m128i*)scales)};
  }
  // A last one of fewer blocks, and zeros.
  FS_INLINE static Knot last(const KnotRows& w, int i, int64_t k, int64_t blocks) {
    const uint8_t *code = w.code[i] + k * 128, *scales = w.scale[i] + k * kKnotBlocks;
    return {load_codes(code, blocks), load_codes(code + 64, blocks - 8),
            load_scales(scales, blocks)};
  }
  // The last ones of both rows in one, where they have at most eight blocks.
  FS_INLINE static Knot both(const KnotRows& w, int64_t k, int64_t blocks) {
    return {load_codes(w.code[0] + k * 128, blocks), load_codes(w.code[1] + k * 128, blocks),
            _mm_unpacklo_epi64(load_scales(w.scale[0] + k * kKnotBlocks, blocks),
                               load_scales(w.scale[1] + k * kKnotBlocks, blocks))};
  }
  FS_INLINE static __m512i load_codes(const uint8_t* code, int64_t blocks) {
    __mmask8 there = static_cast<__mmask8>(blocks < 8 ? (1 << blocks) - 1 : 0xff);
    return _mm512_maskz_loadu_epi64(there, code);
  }
  FS_INLINE static __m128i load_scales(const uint8_t* scales, int64_t blocks) {
    return _mm_maskz_loadu_epi8(static_cast<__mmask16>((1 << blocks) - 1), scales);
  }
  // Elements 8h + m and 8h + m + 4 of every block, h = step / 4, m = step % 4.
  FS_INLINE __m512bh weights(int step) const {
    const __m512i table = _mm512_load_si512(kE2m1Twice);
    __m512i codes = _mm512_srli_epi32(half[step / 4], step % 4 * 4);
    return (__m512bh)_mm512_permutexvar_epi16(codes, table);
  }
  FS_INLINE __m512 plain_scales() const {
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_cvtepu8_epi16(scale), 7));
  }
  FS_APART __m512 any_scales() const {
    uint8_t bytes[kKnotBlocks];
    _mm_storeu_si128((__m128i*)bytes, scale);
    return mul(load_e4m3(bytes), splat(1 / kScaleUnit)).v;
  }
};

// Whether a scale is negative or NaN, which plain_scales() does not expect. The largest byte of
// several scales tells for all of them.
FS_INLINE bool odd(__m128i scales) {
  return _mm_cmpge_epu8_mask(scales, _mm_set1_epi8(0x7f)) != 0;
}

// sum[i][r] = knot[i] . activation row r, whose knot lies at `x`.
template <int D, int R>
FS_INLINE void multiply_knots(const bf16* x, const Knot (&knot)[D], __m512 (&sum)[D][R]) {
#pragma GCC unroll 8
  for (int i = 0; i < D; ++i)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sum[i][r] = _mm512_setzero_ps();
#pragma GCC unroll 8
  for (int step = 0; step < kKnotSteps; ++step) {
#pragma GCC unroll 8
    for (int i = 0; i < D; ++i) {
      __m512bh b = knot[i].weights(step);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        __m512bh a = (__m512bh)_mm512_loadu_si512(x + (step * R + r) * kStep<bf16>);
        sum[i][r] = _mm512_dpbf16_ps(sum[i][r], b, a);
      }
    }
  }
}

// R activation rows of m.in elements times two rows of m; lanes to sum to acc, kKnotOuts for each
// activation row. False if a scale was odd and `Plain`: then they are worth nothing.
template <int R, bool Plain>
FS_INLINE bool knots_two(const bf16* x, const KnotRows& w, int64_t in, const Distance& distance,
                         V* acc) {
  __m512 total[2][R];
#pragma GCC unroll 8
  for (auto& row : total)
    for (__m512& t : row) t = _mm512_setzero_ps();
  __m128i largest = _mm_setzero_si128();
  auto scales = [&](const Knot& knot) __attribute__((always_inline)) {
    if constexpr (Plain) largest = _mm_max_epu8(largest, knot.scale);
    return Plain ? knot.plain_scales() : knot.any_scales();
  };
  auto one_each = [&](int64_t k, const Knot (&knot)[2]) __attribute__((always_inline)) {
    __m512 sum[2][R];
    multiply_knots(x + k * kKnotSteps * R * kStep<bf16>, knot, sum);
#pragma GCC unroll 8
    for (int i = 0; i < 2; ++i) {
      __m512 scale = scales(knot[i]);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) total[i][r] = _mm512_fmadd_ps(sum[i][r], scale, total[i][r]);
    }
  };
  int64_t whole = in / kKnot, rest = in % kKnot / 16;
  for (int64_t k = 0; k < whole; ++k) {
    w.ahead(k, distance, false);
    one_each(k, {Knot::whole(w, 0, k), Knot::whole(w, 1, k)});
  }
  if (rest) w.ahead(whole, distance, rest <= kSharedBlocks);
  if (rest > kSharedBlocks) {
    one_each(whole, {Knot::last(w, 0, whole, rest), Knot::last(w, 1, whole, rest)});
  } else if (rest) {
    const Knot knot[1] = {Knot::both(w, whole, rest)};
    __m512 sum[1][R], scale = scales(knot[0]);
    multiply_knots(x + whole * kKnotSteps * R * kStep<bf16>, knot, sum);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      total[0][r] = _mm512_mask3_fmadd_ps(sum[0][r], scale, total[0][r], 0x00ff);
      total[1][r] = _mm512_mask3_fmadd_ps(sum[0][r], scale, total[1][r], 0xff00);
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < 2; ++i)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r * kKnotOuts + i] = {total[i][r]};
  return !odd(largest);
}

// One group of R rows times rows [begin, end) of a matrix.
template <int R>
void knots_block(const bf16* x, const Walk& walk, int64_t begin, int64_t end, float* y,
                 int64_t ys) {
  const Matrix& m = walk.m;
  float factor = m.factor * kScaleUnit;
  for (int64_t out = begin; out < end; out += kKnotOuts, y += kKnotOuts) {
    V acc[R][kKnotOuts];
    Distance distance(walk, out);
    for (int i = 0; i < kKnotOuts; i += 2) {
      KnotRows w(m, out + i);
      if (!knots_two<R, true>(x, w, m.in, distance, &acc[0][i])) [[unlikely]]
        knots_two<R, false>(x, w, m.in, distance, &acc[0][i]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums<kKnotOuts>(acc[r], factor, y + r * ys);
  }
}

}  // namespace fs::FS_ISA

#endif
