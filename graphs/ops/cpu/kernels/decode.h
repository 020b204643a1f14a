// Reads the rows of a weight matrix as operands, in whatever precision they are stored.
//
// A reader holds kOuts neighbouring rows; at(i, s) is step s of row i, part(...) its first elements,
// for a row's last, incomplete step. Keeps true: decoding gives the same values wherever it is done,
// in registers for a few activation rows or into a buffer for many. An nvfp4 operand is e2m1 * e4m3,
// which bf16 holds exactly; the matrix's factor multiplies the finished sum. An fp8 operand is the
// scaled weight, rounded once to X.
#pragma once

#include "kernels/matrix.h"
#include "kernels/operand.h"
#include "kernels/tables.h"

namespace fs::FS_ISA {

#if defined(__AVX512F__)
constexpr int kOuts = 4;
#else
constexpr int kOuts = 2;
#endif

// Starts bringing into the second cache what a walk through the rows will read `distance` later.
// Measured on Zen 4: the walk reaches the speed of memory with this and half of it without.
inline void prefetch(const void* p, int64_t distance) {
  __builtin_prefetch((const char*)p + distance, 0, 2);
}
inline int64_t prefetch_distance(int64_t row_bytes) {
  int64_t tile = kOuts * row_bytes;
  return tile * ((32768 + tile - 1) / tile);
}

// A row past the last is the last again: it is computed and thrown away.
inline int64_t row_of(const Matrix& m, int64_t out) { return out < m.out ? out : m.out - 1; }

// bf16 or f32 in memory.
template <typename X, typename T>
struct PlainRows {
  static constexpr bool kPlain = true;
  const T* row[kOuts];
  int64_t distance;

  PlainRows(const Matrix& m, int64_t out) : distance(prefetch_distance(m.in * sizeof(T))) {
    for (int i = 0; i < kOuts; ++i) row[i] = (const T*)m.weight + row_of(m, out + i) * m.in;
  }
  Operand<X> at(int i, int64_t s) const { return operand_of<X>(row[i] + s * kStep<X>); }
  void ahead(int64_t s) const {
    constexpr int64_t bytes = kStep<X> * sizeof(T);
    if (s * bytes % 64) return;
    for (const T* p : row)
      for (int64_t line = 0; line < bytes; line += 64)
        prefetch((const char*)(p + s * kStep<X>) + line, distance);
  }
  Operand<X> part(int i, int64_t s, int64_t count) const {
    return operand_of<X>(row[i] + s * kStep<X>, count);
  }
};

// Two e2m1 codes a byte and an e4m3 scale for every 16 elements.
template <typename X>
struct Nvfp4Rows {
  static constexpr bool kPlain = false;
  const uint8_t* code[kOuts];
  const uint8_t* scale[kOuts];
  int64_t distance;

  Nvfp4Rows(const Matrix& m, int64_t out) : distance(prefetch_distance(m.in / 2)) {
    for (int i = 0; i < kOuts; ++i) {
      int64_t row = row_of(m, out + i);
      code[i] = (const uint8_t*)m.weight + row * (m.in / 2);
      scale[i] = (const uint8_t*)m.scale + row * (m.in / 16);
    }
  }
  Operand<X> at(int i, int64_t s) const {
    return decode(code[i] + s * (kStep<X> / 2), scale[i] + s * (kStep<X> / 16));
  }
  void ahead(int64_t s) const {
    if (s % (128 / kStep<X>)) return;
    for (const uint8_t* p : code) prefetch(p + s * (kStep<X> / 2), distance);
    if (s % (1024 / kStep<X>)) return;
    for (const uint8_t* p : scale) prefetch(p + s * (kStep<X> / 16), distance / 8);
  }
  Operand<X> part(int i, int64_t s, int64_t count) const {
    uint8_t codes[16] = {}, scales[2] = {};
    std::memcpy(codes, code[i] + s * (kStep<X> / 2), count / 2);
    std::memcpy(scales, scale[i] + s * (kStep<X> / 16), count / 16);
    return decode(codes, scales);
  }
  static Operand<X> decode(const uint8_t* codes, const uint8_t* scales) {
#if defined(__AVX512BF16__)
    if constexpr (sizeof(X) == 2) {
      // One table of 32 values: those of the first scale, then those of the second.
      __m512i table = _mm512_castsi256_si512(_mm256_load_si256((const __m256i*)kScaled[scales[0]]));
      table = _mm512_mask_broadcast_i64x4(
          table, 0xf0, _mm256_load_si256((const __m256i*)kScaled[scales[1]]));
      __m512i four = _mm512_cvtepu16_epi64(_mm_loadu_si128((const __m128i*)codes));
      const __m512i shifts = _mm512_set1_epi64(0x000c000800040000);  // a nibble to each word
      __m512i index = _mm512_multishift_epi64_epi8(shifts, four);
      const __m512i low = _mm512_set1_epi16(15);
      const __m512i second = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
      index = _mm512_ternarylogic_epi64(index, low, second, 0xea);  // (index & low) | second
      return {(__m512bh)_mm512_permutexvar_epi16(index, table)};
    } else
#endif
    {
      float x[kLanes];
      const float step = kE4m3[scales[0]];
      for (int j = 0; j < kLanes / 2; ++j) {
        x[2 * j] = kE2m1[codes[j] & 15] * step;
        x[2 * j + 1] = kE2m1[codes[j] >> 4] * step;
      }
      return {load(x)};
    }
  }
};

// e4m3 codes with an f32 scale a block.
template <typename X>
struct Fp8Rows {
  static constexpr bool kPlain = false;
  const uint8_t* code[kOuts];
  const float* scale[kOuts];
  int64_t distance, block;
  uint64_t reciprocal;  // k / block == k * reciprocal >> 32 while k * block < 2^32

  Fp8Rows(const Matrix& m, int64_t out) : distance(prefetch_distance(m.in)), block(m.block_in) {
    reciprocal = (uint64_t{1} << 32) / block + 1;
    for (int i = 0; i < kOuts; ++i) {
      int64_t row = row_of(m, out + i), across = (m.in + block - 1) / block;
      code[i] = (const uint8_t*)m.weight + row * m.in;
      scale[i] = (const float*)m.scale + row / m.block_out * across;
    }
  }
  Operand<X> at(int i, int64_t s) const {
    return decode(code[i] + s * kStep<X>, scale[i], s * kStep<X>, kStep<X>);
  }
  Operand<X> part(int i, int64_t s, int64_t count) const {
    uint8_t codes[kStep<X>] = {};
    std::memcpy(codes, code[i] + s * kStep<X>, count);
    return decode(codes, scale[i], s * kStep<X>, count);
  }
  void ahead(int64_t s) const {
    if (s % (64 / kStep<X>)) return;
    for (const uint8_t* p : code) prefetch(p + s * kStep<X>, distance);
  }
  // The scales of 16 elements from column k, of which `count` exist.
  V scales(const float* row, int64_t k, int64_t count) const {
    if (block % kLanes == 0) return splat(row[k * reciprocal >> 32]);
    float x[kLanes] = {};
    for (int64_t j = 0; j < kLanes && j < count; ++j) x[j] = row[(k + j) * reciprocal >> 32];
    return load(x);
  }
  Operand<X> decode(const uint8_t* codes, const float* row, int64_t k, int64_t count) const {
    alignas(64) Packed<X> packed[kStep<X>] = {};
    for (int64_t j = 0; j < count; j += kLanes) {
      V x = mul(load_e4m3(codes + j), scales(row, k + j, count - j));
      store_packed<X>(x, packed + j);
    }
    return load_operand<X>(packed);
  }
};

}  // namespace fs::FS_ISA
