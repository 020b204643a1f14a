// What min-p, then top-k, then top-p leave of a row: a prefix of the order by falling scaled logit,
// equal ones by rising id.
//
// A cheap bound from below names the few entries that can belong to the prefix; these are sorted
// and the rules applied to them one by one. Without a bound (top-k of a large part of the
// vocabulary, a flat distribution) all are sorted. Keeps true: the prefix does not depend on how
// good the bound was.
#pragma once

#include <cstring>
#include <vector>

#include "kernels/sample_noise.h"

namespace fs::FS_ISA::sampling {

struct Filters {
  int64_t top_k;  // 0: off
  float top_p, min_p;
  bool off() const { return top_k == 0 && top_p >= 1 && min_p <= 0; }
};

// An entry as a number that sorts like the order: the distance from the top, then the id.
struct Entry {
  uint64_t key;
  static Entry of(float s, int64_t id) {
    float distance = std::fabs(s);
    uint32_t bits;
    std::memcpy(&bits, &distance, 4);
    return {static_cast<uint64_t>(bits) << 32 | static_cast<uint64_t>(id)};
  }
  int64_t id() const { return static_cast<uint32_t>(key); }
  float scaled() const {
    uint32_t bits = static_cast<uint32_t>(key >> 32);
    float distance;
    std::memcpy(&distance, &bits, 4);
    return -distance;
  }
};

// Buffers that a thread keeps; the first `found` entries mean something.
struct Shortlist {
  std::vector<Entry> entries, spare;
  std::vector<float> mass;
  int64_t found = 0;
};

// At most the k-th largest scaled value: that of the largest entries of many disjoint groups, of
// which k are then no smaller.
inline float top_k_bound(const Scaled& row, int64_t k, std::vector<float>& groups) {
  int64_t chunks = (row.count + kChunk - 1) / kChunk;
  int64_t parts = std::min(chunks, std::max<int64_t>(16, k / 4 + 1));
  if (k > parts * kLanes) return kNever;
  groups.resize(parts * kLanes);
  for (int64_t part = 0; part < parts; ++part) {
    V high = splat(kNever);
    float rest[kChunk];
    for (int64_t c = part * chunks / parts; c < (part + 1) * chunks / parts; ++c) {
      const float* p = chunk(row.x, c * kChunk, row.count, rest);
      for (int64_t i = 0; i < kChunk; i += kLanes) high = max(load(p + i), high);
    }
    store(high, groups.data() + part * kLanes);
  }
  std::nth_element(groups.begin(), groups.begin() + (k - 1), groups.end(), std::greater<>());
  return (groups[k - 1] - row.top) / row.warm;
}

// Below every scaled value whose e^s reaches min_p, also where e^s is subnormal and so coarse.
inline float min_p_bound(float min_p) { return std::log(min_p) - 1; }

// A value that the nucleus ends above, and the sum of e^s over the row: the first of a few
// thresholds that has enough mass above it.
inline float top_p_bound(const Scaled& row, float top_p, double& total) {
  constexpr float kThresholds[] = {-1, -2, -3, -4.5f, -6, -8, -11, -15};
  constexpr int kCount = 8;
  Sum whole, above[kCount];
  for (int64_t block = 0; block < row.count; block += kBlock) {
    V part[kCount] = {};
    for (int64_t at = block; at < std::min(block + kBlock, row.count); at += kChunk) {
      float s[kChunk];
      row.rough(at, s);
      V sum = splat(0);
      for (int i = 0; i < kChunk; i += kLanes) {
        V here = load(s + i), mass = exp(here);
        sum = add(sum, mass);
        for (int j = 0; j < kCount; ++j)
          part[j] = add(part[j], where_at_least(here, kThresholds[j], mass));
      }
      whole.add(sum);
    }
    for (int j = 0; j < kCount; ++j) above[j].add(part[j]);
  }
  total = whole.total();
  // The margin covers the rounding of the partial sums.
  for (int j = 0; j < kCount; ++j)
    if (above[j].total() * (1 - 1e-5) >= top_p * total) return kThresholds[j];
  return kNever;
}

// All entries that are at least `bound`, and perhaps a few below it.
inline void collect(const Scaled& row, float bound, Shortlist& list) {
  if (static_cast<int64_t>(list.entries.size()) < row.count) list.entries.resize(row.count);
  list.found = 0;
  float least = Scaled::below(bound);
  for (int64_t at = 0; at < row.count; at += kChunk) {
    float s[kChunk];
    row.rough(at, s);
    Ints held{};
    for (int i = 0; i < kChunk; i += kWide) held |= load_as<Floats>(s + i) >= least;
    if (!any(held)) continue;
    for (int64_t id = at; id < std::min(at + kChunk, row.count); ++id)
      if (s[id - at] >= least) list.entries[list.found++] = Entry::of(row.at(id), id);
  }
}

// Sorts entries that stand in rising id: a stable sort of the distance is enough.
inline void sort(Shortlist& list) {
  if (list.found < 2048) {
    auto begin = list.entries.begin();
    std::sort(begin, begin + list.found, [](Entry a, Entry b) { return a.key < b.key; });
    return;
  }
  if (list.spare.size() < list.entries.size()) list.spare.resize(list.entries.size());
  for (int shift = 32; shift < 64; shift += 11) {
    int64_t place[2049] = {};
    auto digit = [&](int64_t i) { return list.entries[i].key >> shift & 2047; };
    for (int64_t i = 0; i < list.found; ++i) ++place[digit(i) + 1];
    for (int i = 0; i < 2048; ++i) place[i + 1] += place[i];
    for (int64_t i = 0; i < list.found; ++i) list.spare[place[digit(i)]++] = list.entries[i];
    list.entries.swap(list.spare);
  }
}

// How many of the sorted entries stay, at least one. `total` is the mass that top-p shares out, or
// negative when that is the mass of the entries min-p and top-k leave.
inline int64_t prefix(Shortlist& list, const Filters& f, double total) {
  int64_t found = list.found, kept = found;
  list.mass.resize((found + kLanes - 1) / kLanes * kLanes);
  for (int64_t i = 0; i < found; ++i) list.mass[i] = list.entries[i].scaled();
  for (int64_t i = 0; i < found; i += kLanes)
    store(exp(load(list.mass.data() + i)), list.mass.data() + i);
  if (f.top_k > 0) kept = std::min(kept, f.top_k);
  for (int64_t i = 1; i < kept; ++i)
    if (!(list.mass[i] >= f.min_p)) kept = i;
  if (f.top_p >= 1) return kept;
  double before = 0;
  if (total < 0) {
    total = 0;
    for (int64_t i = 0; i < kept; ++i) total += list.mass[i];
  }
  for (int64_t i = 0; i < kept; ++i) {
    if (i > 0 && !(before / total < f.top_p)) return i;
    before += list.mass[i];
  }
  return kept;
}

// Fills the shortlist, sorted; the number of entries that the filters keep.
inline int64_t shortlist(const Scaled& row, const Filters& f, Shortlist& list) {
  float bound = kNever;
  double total = -1;
  if (f.top_k > 0) bound = top_k_bound(row, f.top_k, list.mass);
  if (f.min_p > 0) bound = std::max(bound, min_p_bound(f.min_p));
  if (f.top_k == 0 && f.min_p <= 0) bound = top_p_bound(row, f.top_p, total);
  collect(row, std::min(bound, 0.0f), list);  // the top itself stays whatever min_p is
  sort(list);
  return prefix(list, f, total);
}

}  // namespace fs::FS_ISA::sampling
