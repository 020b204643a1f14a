// What a product multiplies: 64 bytes of consecutive elements of a row, for one instruction.
//
// X is the activation type. With avx512 a bf16 operand is 32 bf16 values and lane i of a sum takes
// elements 2i and 2i + 1; everywhere else an operand is 16 floats (bf16 widens exactly). Keeps
// true: a sum is one accumulator of 16 lanes over the operands in rising order, then the tree of
// sum(), so its bits depend on its two rows alone, not on how many others are computed beside it.
#pragma once

#include "kernels/vec.h"

// For what an inner loop is made of. Also, gcc takes a function that only prefetches for one
// without effects and drops its calls, unless it has inlined it before it looks.
#define FS_INLINE inline __attribute__((always_inline))
// For what would only make an inner loop longer.
#define FS_APART __attribute__((noinline))

namespace fs::FS_ISA {

template <typename X>
struct Operand {
  V v;
};
template <typename X>
struct PackedType {
  using type = float;
};
#if defined(__AVX512BF16__)
template <>
struct Operand<bf16> {
  __m512bh v;
};
template <>
struct PackedType<bf16> {
  using type = bf16;
};
#endif
// The type of an operand's elements in memory, and how many an operand holds.
template <typename X>
using Packed = typename PackedType<X>::type;
template <typename X>
constexpr int64_t kStep = 64 / sizeof(Packed<X>);

template <typename X>
inline Operand<X> load_operand(const Packed<X>* p) {
#if defined(__AVX512BF16__)
  if constexpr (sizeof(Packed<X>) == 2) return {(__m512bh)_mm512_loadu_si512(p)};
  else
#endif
  return {load(p)};
}
template <typename X>
inline void store_operand(Operand<X> a, Packed<X>* p) {
  std::memcpy(p, &a, 64);
}

// acc + a * b, lane by lane.
template <typename X>
inline V mac(V acc, Operand<X> a, Operand<X> b) {
#if defined(__AVX512BF16__)
  if constexpr (sizeof(Packed<X>) == 2) return {_mm512_dpbf16_ps(acc.v, a.v, b.v)};
  else
#endif
  return fma(a.v, b.v, acc);
}

// Every lane rounded to X.
template <typename X>
inline V rounded_to(V a) {
  if constexpr (sizeof(X) == 4) return a;
  else return round_lanes(a);
}
// Sixteen values as products read them: rounded to X, in the packed type.
template <typename X>
inline void store_packed(V a, Packed<X>* p) {
  if constexpr (sizeof(Packed<X>) == 2) store(a, p);
  else store(rounded_to<X>(a), p);
}

// An operand of values still to be rounded to X: kStep<X> of them, in order.
template <typename X>
inline Operand<X> rounded_operand(const V* a) {
#if defined(__AVX512BF16__)
  if constexpr (sizeof(Packed<X>) == 2) return {_mm512_cvtne2ps_pbh(a[1].v, a[0].v)};
  else
#endif
  return {rounded_to<X>(a[0])};
}

// An operand from T in memory: rounded to X where T is wider, the first `count` elements and zeros.
template <typename X, typename T>
inline Operand<X> operand_of(const T* p) {
  if constexpr (sizeof(T) == 2 && sizeof(Packed<X>) == 2) {
    return load_operand<X>(p);
  } else if constexpr (sizeof(T) == 4 && sizeof(X) == 4) {
    return {load(p)};
  } else if constexpr (sizeof(T) == 2) {
    return {load(p)};
  } else {
    V parts[kStep<X> / kLanes];
    for (V& part : parts) part = load(p + (&part - parts) * kLanes);
    return rounded_operand<X>(parts);
  }
}
template <typename X, typename T>
inline Operand<X> operand_of(const T* p, int64_t count) {
  alignas(64) T whole[kStep<X>] = {};
  std::memcpy(whole, p, count * sizeof(T));
  return operand_of<X>(whole);
}

#if defined(__AVX512F__)
// Halves added as sum() does, of two values beside each other: eight lanes are left of each, then
// four of four values.
FS_INLINE __m512 eights(V x, V y) {
  return _mm512_add_ps(_mm512_shuffle_f32x4(x.v, y.v, 0x44), _mm512_shuffle_f32x4(x.v, y.v, 0xee));
}
FS_INLINE __m512 fours(const V* a) {
  __m512 x = eights(a[0], a[1]), y = eights(a[2], a[3]);
  return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
}
FS_INLINE __m512 twos(__m512 x, __m512 y) {
  return _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x44), _mm512_shuffle_ps(x, y, 0xee));
}
#endif

// The sums of `count` accumulators, each times `factor`.
template <int count>
FS_INLINE void sums(const V* a, float factor, float* out) {
#if defined(__AVX512F__)
  if constexpr (count == 16) {
    __m512 x = twos(fours(a), fours(a + 4)), y = twos(fours(a + 8), fours(a + 12));
    __m512 s = _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xdd));
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    store(mul({_mm512_permutexvar_ps(order, s)}, splat(factor)), out);
    return;
  }
  if constexpr (count == 4) {
    __m512 s = fours(a);
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0x4e));
    s = _mm512_add_ps(s, _mm512_permute_ps(s, 0xb1));
    const __m512i firsts = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    __m128 four = _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, s));
    _mm_storeu_ps(out, _mm_mul_ps(four, _mm_set1_ps(factor)));
    return;
  }
#endif
  for (int i = 0; i < count; ++i) out[i] = sum(a[i]) * factor;
}

}  // namespace fs::FS_ISA
