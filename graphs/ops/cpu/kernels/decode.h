// Reads the rows of a weight matrix as operands, in whatever precision they are stored.
//
// A reader holds kOuts neighbouring rows; at(i, s) is step s of row i, part(...) its first
// elements, for a row's last, incomplete step. Up to kFewGroups groups of activation rows it is
// faster to decode a weight for each than to keep it in a buffer. Keeps true: decoding gives the
// same values wherever it is done. An nvfp4 operand is e2m1 * e4m3, which bf16 holds exactly; the
// matrix's factor multiplies the finished sum. An fp8 operand is the scaled weight, rounded once
// to X.
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
FS_INLINE void prefetch(const void* p, int64_t distance) {
  __builtin_prefetch((const char*)(reinterpret_cast<uintptr_t>(p) + distance), 0, 2);
}
// What is begun so many bytes early comes in time.
constexpr int64_t kSoon = 8192;

// A walk through the rows of a matrix and on into `then`, which is read after it, if anything is.
struct Walk {
  const Matrix& m;
  const Matrix* then;
  int64_t rows;  // that are kSoon together: whole tiles
  int64_t row_bytes, scale_bytes;

  Walk(const Matrix& m, const Matrix* after) : m(m), then(after), row_bytes(m.row_bytes()) {
    scale_bytes = m.format == Format::nvfp4 ? m.in / 16 : 0;
    rows = (kSoon / kOuts + row_bytes - 1) / row_bytes * kOuts;
    if (then != nullptr && (then->format != m.format || then->in != m.in)) then = nullptr;
  }
};

// How many bytes behind what the walk reads at row `out` lies what it reads when it is kSoon
// further, in the matrix or in the one after it; 0, which costs nothing to fetch, if there is none.
struct Distance {
  int64_t weight = 0, scale = 0;
  bool beyond = false;  // in the matrix after it

  FS_INLINE Distance(const Walk& walk, int64_t out) {
    int64_t left = out + walk.rows - walk.m.out;
    if (left < 0) {
      weight = walk.rows * walk.row_bytes;
      scale = walk.rows * walk.scale_bytes;
    } else if (walk.then != nullptr && left < walk.then->out) {
      beyond = true;
      weight = between(walk.m.weight, walk.then->weight) + (left - out) * walk.row_bytes;
      scale = between(walk.m.scale, walk.then->scale) + (left - out) * walk.scale_bytes;
    }
  }
  static int64_t between(const char* from, const char* to) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) -
                                reinterpret_cast<uintptr_t>(from));
  }
};

template <int64_t most>
inline void copy_part(uint8_t* to, const uint8_t* from, int64_t count) {
  for (int64_t i = 0; i < most; ++i) to[i] = i < count ? from[i] : 0;
}

// A row past the last is the last again: it is computed and thrown away.
inline int64_t row_of(const Matrix& m, int64_t out) { return out < m.out ? out : m.out - 1; }

// bf16 or f32 in memory.
template <typename X, typename T>
struct PlainRows {
  static constexpr int64_t kFewGroups = INT64_MAX;
  static constexpr bool kStreams = sizeof(T) <= sizeof(X);
  static constexpr int64_t kStepBytes = kStep<X> * sizeof(T);
  const T* row[kOuts];
  Distance distance;

  PlainRows(const Walk& walk, int64_t out) : distance(walk, out) {
    const Matrix& m = walk.m;
    for (int i = 0; i < kOuts; ++i) row[i] = (const T*)m.weight + row_of(m, out + i) * m.in;
  }
  FS_INLINE Operand<X> at(int i, int64_t s) const { return operand_of<X>(row[i] + s * kStep<X>); }
  FS_INLINE void ahead(int64_t s) const {
    if (s * kStepBytes % 64) return;
    for (const T* p : row)
      for (int64_t line = 0; line < kStepBytes; line += 64)
        prefetch(p + s * kStep<X>, distance.weight + line);
  }
  FS_APART Operand<X> part(int i, int64_t s, int64_t count) const {
    return operand_of<X>(row[i] + s * kStep<X>, count);
  }
};

// Two e2m1 codes a byte and an e4m3 scale for every 16 elements.
template <typename X>
struct Nvfp4Rows {
  static constexpr int64_t kFewGroups = 2;
  static constexpr bool kStreams = false;
  const uint8_t* code[kOuts];
  const uint8_t* scale[kOuts];
  Distance distance;

  Nvfp4Rows(const Walk& walk, int64_t out) : distance(walk, out) {
    const Matrix& m = walk.m;
    for (int i = 0; i < kOuts; ++i) {
      int64_t row = row_of(m, out + i);
      code[i] = (const uint8_t*)m.weight + row * (m.in / 2);
      scale[i] = (const uint8_t*)m.scale + row * (m.in / 16);
    }
  }
  FS_INLINE Operand<X> at(int i, int64_t s) const {
    return decode(code[i] + s * (kStep<X> / 2), scale[i] + s * (kStep<X> / 16));
  }
  FS_INLINE void ahead(int64_t s) const {
    if (s % (128 / kStep<X>)) return;
    for (const uint8_t* p : code) prefetch(p + s * (kStep<X> / 2), distance.weight);
    if (s % (1024 / kStep<X>)) return;
    for (const uint8_t* p : scale) prefetch(p + s * (kStep<X> / 16), distance.scale);
  }
  FS_APART Operand<X> part(int i, int64_t s, int64_t count) const {
    uint8_t codes[16] = {}, scales[2] = {};
    copy_part<16>(codes, code[i] + s * (kStep<X> / 2), count / 2);
    copy_part<2>(scales, scale[i] + s * (kStep<X> / 16), count / 16);
    return decode(codes, scales);
  }
  FS_INLINE static Operand<X> decode(const uint8_t* codes, const uint8_t* scales) {
    V x[kStep<X> / kLanes] = {load_e2m1(codes, kE4m3[scales[0]])};
    return rounded_operand<X>(x);
  }
};

// e4m3 codes with an f32 scale a block.
template <typename X>
struct Fp8Rows {
  static constexpr int64_t kFewGroups = 1;
  static constexpr bool kStreams = false;
  const uint8_t* code[kOuts];
  const float* scale[kOuts];
  Distance distance;
  int64_t in, block;
  uint64_t reciprocal;  // k / block == k * reciprocal >> 32 while k * block < 2^32
  bool even;            // the elements of a step share a scale

  Fp8Rows(const Walk& walk, int64_t out)
      : distance(walk, out), in(walk.m.in), block(walk.m.block_in) {
    const Matrix& m = walk.m;
    reciprocal = (uint64_t{1} << 32) / block + 1;
    even = block % kStep<X> == 0;
    for (int i = 0; i < kOuts; ++i) {
      int64_t row = row_of(m, out + i), across = (m.in + block - 1) / block;
      code[i] = (const uint8_t*)m.weight + row * m.in;
      scale[i] = (const float*)m.scale + row / m.block_out * across;
    }
  }
  FS_INLINE Operand<X> at(int i, int64_t s) const {
    const uint8_t* p = code[i] + s * kStep<X>;
    return even ? scaled(p, scale_at(i, s * kStep<X>)) : uneven(p, i, s);
  }
  FS_APART Operand<X> part(int i, int64_t s, int64_t count) const {
    uint8_t codes[kStep<X>] = {};
    copy_part<kStep<X>>(codes, code[i] + s * kStep<X>, count);
    return even ? scaled(codes, scale_at(i, s * kStep<X>)) : uneven(codes, i, s);
  }
  FS_INLINE void ahead(int64_t s) const {
    if (s % (64 / kStep<X>)) return;
    for (const uint8_t* p : code) prefetch(p + s * kStep<X>, distance.weight);
  }
  FS_INLINE float scale_at(int i, int64_t k) const { return scale[i][k * reciprocal >> 32]; }
  FS_INLINE static Operand<X> scaled(const uint8_t* codes, float factor) {
#if defined(__AVX512BF16__)
    if constexpr (sizeof(X) == 2) {
      // Even and odd elements as floats, and back in order once they are rounded.
      __m512i x = load_e4m3_as_bf16(codes);
      __m512 even = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
      __m512 odd = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(0xffff0000)));
      __m512 f = _mm512_set1_ps(factor);
      __m512i apart = (__m512i)_mm512_cvtne2ps_pbh(_mm512_mul_ps(odd, f), _mm512_mul_ps(even, f));
      return {(__m512bh)_mm512_permutexvar_epi16(_mm512_load_si512(kZip), apart)};
    } else
#endif
    {
      V x[kStep<X> / kLanes] = {mul(load_e4m3(codes), splat(factor))};
      return rounded_operand<X>(x);
    }
  }
  FS_APART Operand<X> uneven(const uint8_t* codes, int i, int64_t s) const {
    V x[kStep<X> / kLanes];
    for (int64_t from = 0; from < kStep<X>; from += kLanes) {
      float scales[kLanes];
      for (int64_t j = 0; j < kLanes; ++j) {
        int64_t k = s * kStep<X> + from + j;
        scales[j] = scale_at(i, k < in ? k : in - 1);
      }
      x[from / kLanes] = mul(load_e4m3(codes + from), load(scales));
    }
    return rounded_operand<X>(x);
  }
};

}  // namespace fs::FS_ISA
