// Sixteen floats as one value, the same operations on every instruction set. A kernel written with
// it sums in one order everywhere: lane by lane over the row, then the fixed tree of sum().
// Included by the files of this folder alone, once per instruction set.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace fs::FS_ISA {

using bf16 = uint16_t;

inline float widen(bf16 x) {
  uint32_t bits = static_cast<uint32_t>(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
inline float widen(float x) { return x; }

// Round to nearest even; NaN stays a (quiet) NaN.
inline bf16 round_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<bf16>((bits >> 16) | 0x40);
  return static_cast<bf16>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline void narrow(float x, float* out) { *out = x; }
inline void narrow(float x, bf16* out) { *out = round_bf16(x); }
// The value that storing x in an array of T and reading it back gives.
template <typename T>
inline float rounded(float x) {
  T stored;
  narrow(x, &stored);
  return widen(stored);
}

constexpr int64_t kLanes = 16;

#if defined(__AVX512F__)

struct V {
  __m512 v;
};
inline V splat(float x) { return {_mm512_set1_ps(x)}; }
inline V load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline V load(const bf16* p) {
  __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
inline void store(V a, float* p) { _mm512_storeu_ps(p, a.v); }
inline V add(V a, V b) { return {_mm512_add_ps(a.v, b.v)}; }
inline V sub(V a, V b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline V mul(V a, V b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline V div(V a, V b) { return {_mm512_div_ps(a.v, b.v)}; }
inline V max(V a, V b) { return {_mm512_max_ps(a.v, b.v)}; }
inline V min(V a, V b) { return {_mm512_min_ps(a.v, b.v)}; }
inline V fma(V a, V b, V c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline V nearest(V a) { return {_mm512_roundscale_ps(a.v, 8)}; }
// a * 2^n for whole n in [-150, 127]
inline V scale_by_power(V a, V n) { return {_mm512_scalef_ps(a.v, n.v)}; }

#elif defined(__AVX2__)

struct V {
  __m256 lo, hi;
};
inline V splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline __m256 widen8(const bf16* p) {
  __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
inline V load(const bf16* p) { return {widen8(p), widen8(p + 8)}; }
inline void store(V a, float* p) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
#define FS_PAIRWISE(name, op) \
  inline V name(V a, V b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
FS_PAIRWISE(add, _mm256_add_ps)
FS_PAIRWISE(sub, _mm256_sub_ps)
FS_PAIRWISE(mul, _mm256_mul_ps)
FS_PAIRWISE(div, _mm256_div_ps)
FS_PAIRWISE(max, _mm256_max_ps)
FS_PAIRWISE(min, _mm256_min_ps)
#undef FS_PAIRWISE
inline V fma(V a, V b, V c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
inline V nearest(V a) { return {_mm256_round_ps(a.lo, 8), _mm256_round_ps(a.hi, 8)}; }
inline __m256 power8(__m256 n) {
  __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
// In two halves, so that a subnormal result is reached without a subnormal power.
inline V scale_by_power(V a, V n) {
  V half = {_mm256_round_ps(_mm256_mul_ps(n.lo, _mm256_set1_ps(0.5f)), 9),
            _mm256_round_ps(_mm256_mul_ps(n.hi, _mm256_set1_ps(0.5f)), 9)};
  V rest = sub(n, half);
  V first = {power8(half.lo), power8(half.hi)}, second = {power8(rest.lo), power8(rest.hi)};
  return mul(mul(a, first), second);
}

#else

struct V {
  float x[kLanes];
};
#define FS_EACH(expression)                                \
  V r;                                                     \
  for (int i = 0; i < kLanes; ++i) r.x[i] = (expression);  \
  return r;
inline V splat(float s) { FS_EACH(s) }
inline V load(const float* p) { FS_EACH(p[i]) }
inline V load(const bf16* p) { FS_EACH(widen(p[i])) }
inline void store(V a, float* p) {
  for (int i = 0; i < kLanes; ++i) p[i] = a.x[i];
}
inline V add(V a, V b) { FS_EACH(a.x[i] + b.x[i]) }
inline V sub(V a, V b) { FS_EACH(a.x[i] - b.x[i]) }
inline V mul(V a, V b) { FS_EACH(a.x[i] * b.x[i]) }
inline V div(V a, V b) { FS_EACH(a.x[i] / b.x[i]) }
inline V max(V a, V b) { FS_EACH(a.x[i] > b.x[i] ? a.x[i] : b.x[i]) }
inline V min(V a, V b) { FS_EACH(a.x[i] < b.x[i] ? a.x[i] : b.x[i]) }
inline V fma(V a, V b, V c) { FS_EACH(a.x[i] * b.x[i] + c.x[i]) }
inline V nearest(V a) { FS_EACH(std::nearbyintf(a.x[i])) }
inline V scale_by_power(V a, V n) { FS_EACH(std::ldexp(a.x[i], (int)n.x[i])) }
#undef FS_EACH

#endif

// Every lane as round_bf16 rounds it, widened again.
inline V round_lanes(V a) {
#if defined(__AVX512F__)
  __m512i bits = _mm512_castps_si512(a.v), top = _mm512_set1_epi32(0xffff0000);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i near = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  near = _mm512_mask_or_epi32(near, nan, bits, _mm512_set1_epi32(0x400000));
  return {_mm512_castsi512_ps(_mm512_and_si512(near, top))};
#elif defined(__AVX2__)
  auto half = [](__m256 x) {
    __m256i bits = _mm256_castps_si256(x), top = _mm256_set1_epi32(0xffff0000);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i near = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256 nan = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    near = _mm256_blendv_epi8(near, quiet, _mm256_castps_si256(nan));
    return _mm256_castsi256_ps(_mm256_and_si256(near, top));
  };
  return {half(a.lo), half(a.hi)};
#else
  for (float& x : a.x) x = rounded<bf16>(x);
  return a;
#endif
}

inline void store(V a, bf16* p) {
  a = round_lanes(a);
#if defined(__AVX512F__)
  __m512i words = _mm512_srli_epi32(_mm512_castps_si512(a.v), 16);
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(words));
#elif defined(__AVX2__)
  __m256i lo = _mm256_srli_epi32(_mm256_castps_si256(a.lo), 16);
  __m256i hi = _mm256_srli_epi32(_mm256_castps_si256(a.hi), 16);
  __m256i mixed = _mm256_packus_epi32(lo, hi);  // the 128-bit halves of lo and hi alternate
  _mm256_storeu_si256((__m256i*)p, _mm256_permute4x64_epi64(mixed, 0xd8));
#else
  for (int i = 0; i < kLanes; ++i) p[i] = round_bf16(a.x[i]);
#endif
}

// The one order in which the lanes of a value are added: halves onto halves.
inline float sum(V a) {
  float x[kLanes];
  store(a, x);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) x[i] += x[i + width];
  return x[0];
}

inline float largest(V a) {
  float x[kLanes];
  store(a, x);
  float best = x[0];
  for (int i = 1; i < kLanes; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

// The first `count` < 16 elements, zeros after them.
template <typename T>
inline V load_part(const T* p, int64_t count) {
  T x[kLanes] = {};
  std::memcpy(x, p, count * sizeof(T));
  return load(x);
}

// e^x to about one unit in the last place; 0 below -103, infinity above 88.72, NaN stays NaN.
inline V exp(V x) {
  // max and min return their second operand when one is NaN, so x goes second.
  V inside = min(splat(89.0f), max(splat(-104.0f), x));
  V n = nearest(mul(inside, splat(1.44269504f)));
  V r = fma(n, splat(-0.693359375f), inside);  // ln 2 in two parts: r is exact to rounding
  r = fma(n, splat(2.12194440e-4f), r);
  V p = splat(1.0f / 5040);
  for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f})
    p = fma(p, r, splat(c));
  // Two steps, because 2^128 is not a float.
  return scale_by_power(mul(p, splat(2.0f)), sub(n, splat(1.0f)));
}

inline float exp(float x) {
  float y[kLanes];
  store(exp(splat(x)), y);
  return y[0];
}

}  // namespace fs::FS_ISA
