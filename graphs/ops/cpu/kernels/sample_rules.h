// Bias, mask and penalties of one row, written to a copy of it; a row without any stays as it is.
//
// Keeps true: each entry goes through the additions, products and quotients of the torch reference
// in its order, so both give the same bits; a rule that is off changes none, so it is skipped.
#pragma once

#include "kernels/sample_row.h"
#include "kernels/sample.h"

namespace fs::FS_ISA::sampling {

inline bool penalises(const Draw& d) {
  return d.presence != 0 || d.frequency != 0 || d.repetition != 1;
}

// An entry and its count, or vectors of them; `prompted` is not 0 where the prompt holds the token.
template <typename X, typename C>
inline X penalised(X x, C count, C prompted, const Draw& d) {
  X zero{}, one = zero + 1;
  X repeated = x > 0 ? x / d.repetition : x * d.repetition;
  x = (count > 0) | (prompted != 0) ? repeated : x;
  x = x - d.frequency * as_float(count);
  return x - d.presence * (count > 0 ? one : zero);
}

// Entries [begin, end), which share a word of the bit sets.
inline void bias_and_mask(const float* x, const Draw& d, uint32_t allowed, int64_t begin,
                          int64_t end, float* z) {
  for (int64_t i = begin; i < end; ++i) z[i - begin] = x[i];
  if (d.flags & kBias)
    for (int64_t i = begin; i < end; ++i) z[i - begin] += d.bias[i];
  if ((d.flags & kMask) && allowed != ~uint32_t{0})
    for (int64_t i = begin; i < end; ++i) z[i - begin] += (allowed >> (i & 31)) & 1 ? 0.0f : kNever;
}

inline void penalise(const Draw& d, uint32_t prompt, int64_t begin, int64_t end, float* z) {
  int32_t counted = 0;
  for (int64_t i = begin; i < end; ++i) counted |= d.counts[i];
  if (counted == 0 && prompt == 0) return;
  int64_t i = begin;
  for (; i + kWide <= end; i += kWide) {
    Ints bits{}, count = load_as<Ints>(d.counts + i);
    for (int lane = 0; lane < kWide; ++lane) bits[lane] = 1 << lane;
    bits &= static_cast<int32_t>(prompt >> (i & 31));
    put(penalised(load_as<Floats>(z + i - begin), count, bits, d), z + i - begin);
  }
  for (; i < end; ++i)
    z[i - begin] = penalised<float, int32_t>(z[i - begin], d.counts[i], prompt >> (i & 31) & 1, d);
}

// The row of logits x after the rules: x itself or `z`. Its entry's drafts 1..k count as output.
inline const float* apply_rules(const float* x, int64_t vocab, const Draw& d,
                                const uint32_t* mask, int64_t k, float* z) {
  bool penalties = penalises(d);
  if (!penalties && (d.flags & (kBias | kMask)) == 0) return x;
  for (int64_t begin = 0, word = 0; begin < vocab; begin += 32, ++word) {
    int64_t end = std::min(begin + 32, vocab);
    bias_and_mask(x, d, mask[word], begin, end, z + begin);
    if (penalties) penalise(d, d.prompt[word], begin, end, z + begin);
  }
  for (int64_t j = 1; penalties && j <= k; ++j) {
    int64_t id = d.tokens[j * d.tokens_stride];
    if (id < 0 || id >= vocab) continue;
    int32_t count = d.counts[id];
    for (int64_t i = 1; i <= k; ++i) count += d.tokens[i * d.tokens_stride] == id;
    bias_and_mask(x, d, mask[id / 32], id, id + 1, z + id);
    z[id] = penalised<float, int32_t>(z[id], count, d.prompt[id / 32] >> (id & 31) & 1, d);
  }
  return z;
}

}  // namespace fs::FS_ISA::sampling
