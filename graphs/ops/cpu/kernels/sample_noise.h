// The noise of a draw and the race it decides: the token whose scaled logit plus noise is largest.
//
// Philox-4x32-10 gives every token a word, from the key of its row; the token's noise is
// -log(-log(u)) of it in double. That is dear, so a token first takes a test that all who could win
// pass and few others. Keeps true: the winner is that of working out every token, so it does not
// depend on the order in which they come.
#pragma once

#include "kernels/sample_row.h"

namespace fs::FS_ISA::sampling {

struct Key {
  uint32_t seed[2], position[2], choice;
};

// One round for each lane; only the low halves mean anything.
inline void philox_round(Longs* c, uint32_t k0, uint32_t k1) {
  Longs a = product(c[0], 0xD2511F53), b = product(c[2], 0xCD9E8D57);
  c[0] = (b >> 32) ^ c[1] ^ uint64_t{k0};
  c[1] = b;
  c[2] = (a >> 32) ^ c[3] ^ uint64_t{k1};
  c[3] = a;
}

// The words of a chunk's tokens, from token 4 * quad on.
inline void philox(const Key& key, uint32_t quad, uint32_t* words) {
  constexpr int kQuads = kVector / 8, kSets = kChunk / 4 / kQuads;
  Longs c[kSets][4];
  for (int set = 0; set < kSets; ++set) {
    Longs lane{};
    for (int i = 0; i < kQuads; ++i) lane[i] = i;
    c[set][0] = lane + uint64_t{quad} + set * kQuads;
    c[set][1] = Longs{} + key.position[0];
    c[set][2] = Longs{} + key.position[1];
    c[set][3] = Longs{} + key.choice;
  }
  uint32_t k0 = key.seed[0], k1 = key.seed[1];
  for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9, k1 += 0xBB67AE85)
    for (int set = 0; set < kSets; ++set) philox_round(c[set], k0, k1);
  for (int set = 0; set < kSets; ++set) {
    uint64_t one[kQuads], two[kQuads], out[2 * kQuads];
    put((c[set][0] & 0xffffffff) | c[set][1] << 32, one);
    put((c[set][2] & 0xffffffff) | c[set][3] << 32, two);
    for (int i = 0; i < kQuads; ++i) out[2 * i] = one[i], out[2 * i + 1] = two[i];
    std::memcpy(words + set * kQuads * 4, out, sizeof(out));
  }
}

inline float gumbel(uint32_t word) {
  double uniform = (word + 0.5) * 0x1p-32;
  return -static_cast<float>(std::log(-std::log(uniform)));
}

// Which tokens may win: those above `scaled`, and at it the ids up to `last`.
struct Cut {
  float scaled = kNever;
  int64_t last = std::numeric_limits<int64_t>::max();
  bool keeps(float s, int64_t id) const { return s > scaled || (s == scaled && id <= last); }
};

struct Race {
  Key key;
  float best = std::numeric_limits<float>::lowest();
  int64_t winner = -1;

  void enter(float s, int64_t id, uint32_t word) {
    float score = s + gumbel(word);
    if (score > best || (score == best && id < winner)) best = score, winner = id;
  }
  void enter(float s, int64_t id) {
    uint32_t words[kChunk];
    philox(key, static_cast<uint32_t>(id / 4), words);
    enter(s, id, words[id % 4]);
  }
  // The tokens of a row that the cut keeps; `first` is one of them, best the largest.
  void enter(const Scaled& row, Cut cut, int64_t first) {
    enter(row.at(first), first);
    float least = Scaled::below(cut.scaled);
    for (int64_t at = 0; at < row.count; at += kChunk) {
      float s[kChunk];
      uint32_t words[kChunk];
      row.rough(at, s);
      philox(key, static_cast<uint32_t>(at / 4), words);
      int32_t held[kChunk];
      if (!hopeful(s, least, words, held)) continue;
      for (int64_t i = 0; i < kChunk; ++i) {
        if (!held[i]) continue;
        float exact = row.at(at + i);
        if (cut.keeps(exact, at + i)) enter(exact, at + i, words[i]);
      }
    }
  }
  // Marks the tokens of a chunk that may beat the best and says whether there are any:
  // s - log(-log(u)) >= best asks for -log(u) <= e^(s - best), and 1 - u is less than -log(u). One
  // part in a thousand covers all rounding.
  bool hopeful(const float* s, float least, const uint32_t* words, int32_t* held) const {
    Ints found{};
    for (int i = 0; i < kChunk; i += kLanes) {
      float reach[kLanes];
      store(exp(sub(load(s + i), splat(best))), reach);
      for (int j = 0; j < kLanes; j += kWide) {
        Floats rest = as_float((Ints)(~load_as<Words>(words + i + j) >> 1)) * 0x1p-31f;
        Floats most = load_as<Floats>(reach + j) * 1.001f;
        Ints here = (rest <= most) & (load_as<Floats>(s + i + j) >= least);
        put(here, held + i + j);
        found |= here;
      }
    }
    return any(found);
  }
};

}  // namespace fs::FS_ISA::sampling
