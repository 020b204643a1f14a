// The sampling kernels as the bindings call them: raw pointers, one Draw a batch entry. Rows of a
// matrix lie `vocab` apart unless a stride says otherwise; a bit set has ceil(vocab / 32) words.
#pragma once

#include <cstdint>

#include "isa.h"

namespace fs {

// How one batch entry samples; the names and the values that mean "off" are those of Sampling.
struct Draw {
  int64_t seed, choice, position, top_k, flags;
  float temperature, top_p, min_p, presence, frequency, repetition;
  const int64_t* tokens;   // the last committed token, then the drafts
  int64_t tokens_stride;
  const int32_t* counts;   // of this entry's slot, like the next two
  const uint32_t* prompt;
  const float* bias;
};

constexpr int64_t kBias = 1, kMask = 2;  // bits of flags

struct SampleJob {
  const float* logits;
  int64_t rows, width, vocab, stride;
  const Draw* entries;     // one every `width` rows
  const uint32_t* mask;    // a bit set a row
  int64_t* token;
  float* logprob;
};

struct ArgmaxJob {
  const float* logits;
  int64_t rows, vocab, stride;
  int64_t* token;
};

}  // namespace fs

FS_KERNEL(sample, (const SampleJob& job), (job))
FS_KERNEL(argmax, (const ArgmaxJob& job), (job))
