// The values of the small formats: e4m3 bytes and e2m1 nibbles.
// Constants of the program: nothing runs to make them.
#pragma once

#include <bit>

#include "kernels/vec.h"

namespace fs::FS_ISA {

constexpr float kE2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                             -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

constexpr float e4m3(int code) {
  int exponent = (code >> 3) & 15, mantissa = code & 7;
  float x = exponent ? 8 + mantissa : mantissa;
  for (int i = exponent ? exponent : 1; i < 10; ++i) x /= 2;
  for (int i = 10; i < exponent; ++i) x *= 2;
  if ((code & 127) == 127) x = __builtin_nanf("");
  return code & 128 ? -x : x;
}

struct Tables {
  float e4m3_values[256] = {};
  alignas(64) uint8_t e4m3_low[128] = {}, e4m3_high[128] = {};  // bytes of bf16, without the sign
  alignas(64) uint8_t twice[64] = {};                           // 0, 0, 1, 1, 2, 2...
  alignas(64) bf16 e2m1_twice[32] = {};
  alignas(64) uint16_t zip[32] = {};                            // 0, 16, 1, 17...

  constexpr Tables() {
    for (int i = 0; i < 64; ++i) twice[i] = static_cast<uint8_t>(i / 2);
    for (int i = 0; i < 32; ++i) zip[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
    for (int i = 0; i < 32; ++i)
      e2m1_twice[i] = static_cast<bf16>(std::bit_cast<uint32_t>(kE2m1[i % 16]) >> 16);
    for (int code = 0; code < 128; ++code) {
      uint32_t bits = std::bit_cast<uint32_t>(e4m3(code));
      e4m3_low[code] = static_cast<uint8_t>(bits >> 16);
      e4m3_high[code] = static_cast<uint8_t>(bits >> 24);
    }
    for (int code = 0; code < 256; ++code) e4m3_values[code] = e4m3(code);
  }
};
inline constexpr Tables kTables;
inline constexpr const float (&kE4m3)[256] = kTables.e4m3_values;
inline constexpr const bf16 (&kE2m1Twice)[32] = kTables.e2m1_twice;
inline constexpr const uint16_t (&kZip)[32] = kTables.zip;

// Sixteen e4m3 bytes.
inline V load_e4m3(const uint8_t* p) {
#if defined(__AVX512F__)
  // As the f16 of 2^-8 times the value: sign, a zero, and the seven bits at the right place.
  __m256i wide = _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)p)), 8);
  __m256i half = _mm256_and_si256(_mm256_srai_epi16(wide, 1), _mm256_set1_epi16((short)0xbfff));
  __m256i magnitude = _mm256_and_si256(wide, _mm256_set1_epi16(0x7f00));
  __mmask16 nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7f00));
  __m512 x = _mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256));
  return {_mm512_mask_mov_ps(x, nan, _mm512_set1_ps(__builtin_nanf("")))};
#elif defined(__AVX2__)
  auto eight = [](const uint8_t* bytes) {
    __m256i code = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)bytes));
    __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi32(0x7f));
    __m256i normal = _mm256_slli_epi32(magnitude, 20);
    normal = _mm256_add_epi32(normal, _mm256_set1_epi32(120 << 23));
    __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(1.0f / 512));
    __m256i tiny = _mm256_cmpgt_epi32(_mm256_set1_epi32(8), magnitude);
    __m256i nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
    __m256i bits = _mm256_blendv_epi8(normal, _mm256_castps_si256(small), tiny);
    bits = _mm256_or_si256(bits, _mm256_and_si256(nan, _mm256_set1_epi32(0x7fc00000)));
    __m256i sign = _mm256_slli_epi32(_mm256_andnot_si256(_mm256_set1_epi32(0x7f), code), 24);
    return _mm256_castsi256_ps(_mm256_or_si256(bits, sign));
  };
  return {eight(p), eight(p + 8)};
#else
  float x[kLanes];
  for (int i = 0; i < kLanes; ++i) x[i] = kE4m3[p[i]];
  return load(x);
#endif
}

// Sixteen e2m1 codes in eight bytes, each times `scale`.
inline V load_e2m1(const uint8_t* p, float scale) {
#if defined(__AVX2__)
  __m128i bytes = _mm_loadl_epi64((const __m128i*)p), low = _mm_set1_epi8(15);
  __m128i high = _mm_and_si128(_mm_srli_epi16(bytes, 4), low);
  __m128i codes = _mm_unpacklo_epi8(_mm_and_si128(bytes, low), high);
  const __m128i doubled =
      _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
  __m128i x = _mm_shuffle_epi8(doubled, codes);
#if defined(__AVX512F__)
  return mul({_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x))}, splat(scale / 2));
#else
  V wide = {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
  return mul(wide, splat(scale / 2));
#endif
#else
  float x[kLanes];
  for (int i = 0; i < kLanes / 2; ++i) {
    x[2 * i] = kE2m1[p[i] & 15] * scale;
    x[2 * i + 1] = kE2m1[p[i] >> 4] * scale;
  }
  return load(x);
#endif
}

#if defined(__AVX512BF16__)
// Thirty-two e4m3 bytes as bf16, exactly.
inline __m512i load_e4m3_as_bf16(const uint8_t* p) {
  __m512i both = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)p));
  __m512i code = _mm512_permutexvar_epi8(_mm512_load_si512(kTables.twice), both);
  auto look = [&](const uint8_t* table) {
    return _mm512_permutex2var_epi8(_mm512_load_si512(table), code, _mm512_load_si512(table + 64));
  };
  __m512i x = _mm512_mask_mov_epi8(look(kTables.e4m3_low), 0xaaaaaaaaaaaaaaaa,
                                   look(kTables.e4m3_high));
  const __m512i sign = _mm512_set1_epi16((short)0x8000);
  return _mm512_ternarylogic_epi64(x, code, sign, 0xf8);  // x | (code & sign)
}
#endif

}  // namespace fs::FS_ISA
