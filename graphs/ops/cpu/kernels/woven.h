// Nvfp4 times bf16 with avx512: a block of sixteen weights to each lane, so that a lane's scale
// multiplies its sum, not its weights.
//
// Sixteen blocks, 256 weights of a row, are a knot. Its two registers of codes, shifted by whole
// nibbles, hold in every step two weights of each block: a table makes them bf16 and one
// instruction multiplies and adds. Activations are packed in that order (PackedRows::put). Keeps
// true: an element is, for each knot, eight steps from zero, then sum * scale added to what the
// knots before left; the tree of sum() and the matrix's factor come last.
#pragma once

#include "kernels/decode.h"
#include "kernels/tiles.h"

#if defined(__AVX512BF16__)

namespace fs::FS_ISA {

constexpr int64_t kKnotSteps = 8, kKnotBlocks = 16;
constexpr int kKnotOuts = 16;  // weight rows whose sums are made together
// Scales are read as f16, which holds e4m3 * 2^-8.
constexpr float kScaleUnit = 256;

// The codes and scales of kOuts rows of a matrix.
struct KnotRows {
  const uint8_t* code[kOuts];
  const uint8_t* scale[kOuts];
  int64_t whole, rest, distance;  // knots, and blocks of a last incomplete one

  KnotRows(const Matrix& m, int64_t out, int64_t distance)
      : whole(m.in / kKnot), rest(m.in % kKnot / 16), distance(distance) {
    for (int i = 0; i < kOuts; ++i) {
      code[i] = (const uint8_t*)m.weight + row_of(m, out + i) * (m.in / 2);
      scale[i] = (const uint8_t*)m.scale + row_of(m, out + i) * (m.in / 16);
    }
  }
};

// One knot of one row: the first and the second eight weights of every block.
struct Knot {
  __m512i half[2];
  __m128i scale;

  // Of the last knot, unless it is `Whole`, the blocks that exist, and zeros.
  template <bool Whole>
  FS_INLINE static Knot of(const KnotRows& w, int i, int64_t k) {
    const __m512i firsts =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i seconds = _mm512_add_epi32(firsts, _mm512_set1_epi32(1));
    const uint8_t *code = w.code[i] + k * 128, *scales = w.scale[i] + k * kKnotBlocks;
    __m512i a, b;
    Knot knot;
    if constexpr (Whole) {
      a = _mm512_loadu_si512(code);
      b = _mm512_loadu_si512(code + 64);
      knot.scale = _mm_loadu_si128((const __m128i*)scales);
    } else {
      uint32_t blocks = (1u << w.rest) - 1;
      a = _mm512_maskz_loadu_epi64(static_cast<__mmask8>(blocks), code);
      b = _mm512_maskz_loadu_epi64(static_cast<__mmask8>(blocks >> 8), code + 64);
      knot.scale = _mm_maskz_loadu_epi8(static_cast<__mmask16>(blocks), scales);
    }
    knot.half[0] = _mm512_permutex2var_epi32(a, firsts, b);
    knot.half[1] = _mm512_permutex2var_epi32(a, seconds, b);
    return knot;
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

// R activation rows times rows [first, first + D) of w; lanes to sum to acc, kKnotOuts for each row.
// False if a scale was odd and `Plain`: then they are worth nothing.
template <int R, int D, bool Plain>
FS_INLINE bool knots_few(const bf16* x, const KnotRows& w, int first, V* acc) {
  __m512 total[D][R];
#pragma GCC unroll 8
  for (int i = 0; i < D; ++i)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) total[i][r] = _mm512_setzero_ps();
  __m128i largest = _mm_setzero_si128();
  auto knots = [&](auto whole, int64_t k) __attribute__((always_inline)) {
    const bf16* at = x + k * kKnotSteps * R * kStep<bf16>;
    Knot knot[D];
    __m512 sum[D][R];
#pragma GCC unroll 8
    for (int i = 0; i < D; ++i) {
      prefetch(w.code[first + i] + k * 128, w.distance);
      prefetch(w.code[first + i] + k * 128 + 64, w.distance);
      if (k % 4 == 0) prefetch(w.scale[first + i] + k * kKnotBlocks, w.distance / 8);
      knot[i] = Knot::of<decltype(whole)::value>(w, first + i, k);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) sum[i][r] = _mm512_setzero_ps();
    }
#pragma GCC unroll 8
    for (int step = 0; step < kKnotSteps; ++step) {
#pragma GCC unroll 8
      for (int i = 0; i < D; ++i) {
        __m512bh b = knot[i].weights(step);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          __m512bh a = (__m512bh)_mm512_loadu_si512(at + (step * R + r) * kStep<bf16>);
          sum[i][r] = _mm512_dpbf16_ps(sum[i][r], b, a);
        }
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < D; ++i) {
      if constexpr (Plain) largest = _mm_max_epu8(largest, knot[i].scale);
      __m512 scale = Plain ? knot[i].plain_scales() : knot[i].any_scales();
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) total[i][r] = _mm512_fmadd_ps(sum[i][r], scale, total[i][r]);
    }
  };
  for (int64_t k = 0; k < w.whole; ++k) knots(Count<true>{}, k);
  if (w.rest) knots(Count<false>{}, w.whole);
#pragma GCC unroll 8
  for (int i = 0; i < D; ++i)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r * kKnotOuts + first + i] = {total[i][r]};
  return !odd(largest);
}

// How far ahead of a walk through the rows is fetched: whole tiles of them.
inline int64_t knot_distance(const Matrix& m) {
  int64_t tile = kOuts * (m.in / 2);
  return tile * (2 * tile < kSoon ? (kSoon + tile - 1) / tile : 2);
}

// One group of R rows times rows [begin, end) of m.
template <int R>
void knots_block(const bf16* x, const Matrix& m, int64_t begin, int64_t end, int64_t distance,
                 float* y, int64_t ys) {
  constexpr int D = R == 1 ? 4 : 2;
  float factor = m.factor * kScaleUnit;
  for (int64_t out = begin; out < end; out += kKnotOuts, y += kKnotOuts) {
    V acc[R][kKnotOuts];
    for (int tile = 0; tile < kKnotOuts; tile += kOuts) {
      KnotRows w(m, out + tile, distance);
#pragma GCC unroll 8
      for (int i = 0; i < kOuts; i += D)
        if (!knots_few<R, D, true>(x, w, i, &acc[0][tile])) [[unlikely]]
          knots_few<R, D, false>(x, w, i, &acc[0][tile]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums<kKnotOuts>(acc[r], factor, y + r * ys);
  }
}

}  // namespace fs::FS_ISA

#endif
