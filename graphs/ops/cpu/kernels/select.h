// The best `kept` of a row's scores, exactly: the higher score, then the lower id. Ids come out
// rising.
//
// Scores are met in rising id. Those above a threshold that only rises are kept in that order, and
// when the buffer is full it is cut to the best: an id that ties with the threshold came too late.
#pragma once

#include "kernels/vec.h"

namespace fs::FS_ISA {

// Bit i: lane i of x is greater than t. NaN is greater than nothing.
inline uint32_t above(V x, float t) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(t), _CMP_GT_OQ);
#elif defined(__AVX2__)
  __m256 limit = _mm256_set1_ps(t);
  uint32_t low = _mm256_movemask_ps(_mm256_cmp_ps(x.lo, limit, _CMP_GT_OQ));
  return low | _mm256_movemask_ps(_mm256_cmp_ps(x.hi, limit, _CMP_GT_OQ)) << 8;
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) bits |= uint32_t{x.x[i] > t} << i;
  return bits;
#endif
}

// A score and an id as one number, larger for the better; no two are equal.
inline uint64_t ranked(float score, int64_t id) {
  uint32_t bits;
  std::memcpy(&bits, &score, 4);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  return uint64_t{bits} << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}
inline float score_of(uint64_t rank) {
  uint32_t bits = static_cast<uint32_t>(rank >> 32);
  bits = bits >> 31 ? bits & 0x7fffffff : ~bits;
  float score;
  std::memcpy(&score, &bits, 4);
  return score;
}
inline int64_t id_of(uint64_t rank) { return 0xffffffffu - static_cast<uint32_t>(rank); }

// The k-th largest (k >= 1) of n different numbers, which end up in another order.
inline uint64_t kth_largest(uint64_t* a, int64_t n, int64_t k) {
  int64_t begin = 0, end = n;
  while (true) {
    uint64_t first = a[begin], middle = a[begin + (end - begin) / 2], last = a[end - 1];
    uint64_t low = first < last ? first : last, high = first < last ? last : first;
    uint64_t pivot = middle < low ? low : middle > high ? high : middle;
    int64_t i = begin, j = end - 1;
    while (i <= j) {
      while (a[i] > pivot) ++i;
      while (a[j] < pivot) --j;
      if (i > j) break;
      uint64_t swap = a[i];
      a[i++] = a[j];
      a[j--] = swap;
    }
    // [begin, j] >= pivot, [i, end) <= pivot, at most one between.
    if (k - 1 <= j) end = j + 1;
    else if (k - 1 >= i) begin = i;
    else return a[k - 1];
    if (end - begin == 1) return a[begin];
  }
}

struct Best {
  int64_t kept;
  uint64_t *held, *spare;  // capacity() each
  int64_t count = 0;
  float threshold = 0;

  static int64_t capacity(int64_t kept) { return 2 * kept + 1024; }

  // Keeps the `kept` best, in order of id.
  void reduce() {
    std::memcpy(spare, held, count * sizeof(uint64_t));
    uint64_t last = kth_largest(spare, count, kept);
    int64_t n = 0;
    for (int64_t i = 0; i < count; ++i) {
      held[n] = held[i];
      n += held[i] >= last;
    }
    count = n;
    threshold = score_of(last);
  }

  // scores [n] without -0, n >= kept; out [kept]. NaN is chosen or not, but breaks nothing.
  void run(const float* scores, int64_t n, int64_t* out) {
    int64_t id = 0, room = capacity(kept) - kLanes;
    for (; id < n && id < room; ++id) held[count++] = ranked(scores[id], id);
    reduce();
    for (; id + kLanes <= n; id += kLanes) {
      for (uint32_t bits = above(load(scores + id), threshold); bits; bits &= bits - 1) {
        int64_t lane = __builtin_ctz(bits);
        held[count++] = ranked(scores[id + lane], id + lane);
      }
      if (count > room) reduce();
    }
    for (; id < n; ++id)
      if (scores[id] > threshold) held[count++] = ranked(scores[id], id);
    reduce();
    for (int64_t i = 0; i < kept; ++i) out[i] = id_of(held[i]);
  }
};

}  // namespace fs::FS_ISA
